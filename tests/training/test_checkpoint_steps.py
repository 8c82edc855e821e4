"""A tracker that a kill has left empty names the newest whole checkpoint again, or is removed."""

from __future__ import annotations

import pytest

from rag_r1.inference.model_folders import TRACKER
from rag_r1.training.checkpoint_steps import last_whole_step, mend_tracker


@pytest.mark.parametrize(("text", "kept"), [("", 10), ("\0\0", 10), ("9", 9)])
def test_a_tracker_that_a_kill_has_left_empty_names_the_newest_whole_checkpoint(tmp_path, text, kept):
    for step, state in ((9, "position"), (10, "position"), (11, ""), (12, None)):
        (tmp_path / f"global_step_{step}").mkdir()
        if state is not None:
            (tmp_path / f"global_step_{step}" / "data.pt").write_text(state)
    (tmp_path / TRACKER).write_text(text)
    mend_tracker(tmp_path)
    assert last_whole_step(tmp_path) == kept


def test_an_empty_tracker_without_a_checkpoint_is_removed(tmp_path):
    mend_tracker(tmp_path)  # there is none yet
    (tmp_path / TRACKER).write_text("")
    mend_tracker(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_whose_weights_veRL_has_removed_is_not_resumed_from(tmp_path):
    """With max_actor_ckpt_to_keep=1 only the newest has weights when the tracker is written."""
    for step, files in ((1, ["data.pt"]), (2, ["data.pt", "actor"])):
        (tmp_path / f"global_step_{step}").mkdir()
        for name in files:
            (tmp_path / f"global_step_{step}" / name).write_text("saved")
    (tmp_path / TRACKER).write_text("")
    mend_tracker(tmp_path)
    assert last_whole_step(tmp_path) == 2
