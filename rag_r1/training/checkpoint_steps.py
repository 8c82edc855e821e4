"""The steps whose checkpoints veRL has saved in a run's folder.

A checkpoint is a folder `global_step_<step>`. After all of its files veRL writes the step into the tracker
file `latest_checkpointed_iteration.txt`, so the tracker names the newest whole checkpoint, from which veRL
resumes.
"""

from __future__ import annotations

import re
from pathlib import Path

from rag_r1.inference.model_folders import TRACKER
from rag_r1.io.atomic_files import write_text

_CHECKPOINT = re.compile(r"global_step_(\d+)")


def saved_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints in a folder by step, in ascending order, including incomplete ones."""
    matches = ((_CHECKPOINT.fullmatch(path.name), path) for path in folder.glob("global_step_*"))
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def last_whole_step(folder: Path) -> int | None:
    """Return the step of the newest whole checkpoint in a run's folder; None if there is none."""
    try:
        return int((folder / TRACKER).read_text())
    except (OSError, ValueError):
        return None


def mend_tracker(folder: Path) -> None:
    """Repair a tracker that a killed training has left empty, with which veRL could not resume.

    veRL empties the tracker before it writes the new step (verl 0.9.1, trainer_base.py, `_save_checkpoint`).
    By then the new checkpoint is complete, so the tracker gets the newest step whose checkpoint has the data
    loader's state, `data.pt`, one of the last files that veRL saves. The tracker is removed if there is no
    such checkpoint. Raises OSError if the tracker cannot be written or removed.
    """
    tracker = folder / TRACKER
    if not tracker.exists() or last_whole_step(folder) is not None:
        return
    whole_steps = [step for step, path in saved_checkpoints(folder).items() if _has_loader_state(path)]
    if whole_steps:
        write_text(tracker, str(whole_steps[-1]))
    else:
        tracker.unlink()


def _has_loader_state(checkpoint: Path) -> bool:
    state = checkpoint / "data.pt"
    return state.is_file() and state.stat().st_size > 0  # a power failure can leave an empty file
