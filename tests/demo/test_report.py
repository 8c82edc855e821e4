"""What the report reads from a run's records."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rag_r1.demo import run
from rag_r1.demo.report import make_report, markdown, summarise
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_out
from tests.explorer.made_records import write


def record(id_, em):
    fields = {"id": id_, "question": "?", "protocol": "rag_r1_mq", "step": 3, "turns": [], "seconds": 1.0}
    return fields | {"data_source": "demo/one_hop", "rewards": {"em": em}}


def test_a_trajectory_without_a_reward_is_not_counted_as_wrong():
    assert summarise([record("a", 1.0), record("b", None)]).em == 1.0


def test_an_interrupted_validation_and_rewards_without_em_do_not_end_the_report(tmp_path):
    bridge = {**record("b", 1.0), "data_source": "demo/bridge"}
    validations = [[record("a", 0.5), bridge], [{**record("a", None), "rewards": {"f1": 1.0}}]]
    for step, records in enumerate(validations):
        rows = [{**each, "step": step} for each in records]
        write(tmp_path / "trajectories" / "val" / f"step_{step}.jsonl", rows)
    assert "| EM one_hop | 0.50 | – | – |" in markdown(make_report(tmp_path, {}))


def test_a_training_with_one_validation_ends_with_the_remedy(tmp_path, monkeypatch, capsys):
    (tmp_path / "trajectories" / "val").mkdir(parents=True)
    (tmp_path / "trajectories" / "train").mkdir()
    monkeypatch.setattr(run, "_check_start", lambda args: tmp_path)
    monkeypatch.setattr(run, "run_demo", lambda *unused: make_report(tmp_path, {}))
    assert run.main(["--out", str(tmp_path)]) == 1
    assert "set trainer.val_before_train=true" in capsys.readouterr().err


def test_a_folder_of_any_name_reaches_the_training(tmp_path):
    out = tmp_path / "José's (1), a=b"
    parsed = OverridesParser.create().parse_overrides(run._run_overrides(out, 0, out, "http://a"))
    assert {override.key_or_group: override.value() for override in parsed}["hydra.run.dir"] == f"{out}/hydra"


def test_a_new_run_removes_the_earlier_policy_first(tmp_path, monkeypatch):
    removed = []
    monkeypatch.setattr(run.shutil, "rmtree", lambda path, ignore_errors: removed.append(path.name))
    with pytest.raises(StopIteration):
        run.run_demo(
            "grpo", tmp_path, 0, inputs=run.TrainingInputs(None, tmp_path, lambda *_: next(iter(())))
        )
    assert removed[0] == "checkpoints"
    with hold_out(tmp_path), pytest.raises(RunError, match="in use by another process"):
        run.run_demo("grpo", tmp_path, 0)
