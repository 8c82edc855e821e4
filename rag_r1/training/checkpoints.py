"""The checkpoints in the folder of a training, as veRL writes them.

Each is a folder `global_step_N`. A tracker file, which is written last of all, names the newest whole
one, from which veRL resumes.
"""

from __future__ import annotations

from pathlib import Path

TRACKER = "latest_checkpointed_iteration.txt"


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that veRL would resume from, which is the newest complete one; None if there is none."""
    tracker = folder / TRACKER
    step = tracker.read_text(errors="replace").strip() if tracker.is_file() else ""
    path = folder / f"global_step_{step}"
    return path if step.isdigit() and path.is_dir() else None
