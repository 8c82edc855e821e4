"""The steps whose checkpoints veRL has saved in a run's folder.

A checkpoint is a folder `global_step_<step>`. veRL names its last whole one in
`latest_checkpointed_iteration.txt`, which it writes after everything else of the checkpoint.
"""

from __future__ import annotations

import re
from pathlib import Path

from rag_r1.inference.model_folders import TRACKER

_CHECKPOINT = re.compile(r"global_step_(\d+)")


def saved_checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder by step, in order; also those that are not whole."""
    matches = ((_CHECKPOINT.fullmatch(path.name), path) for path in folder.glob("global_step_*"))
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def last_whole_step(folder: Path) -> int | None:
    """The step of the last whole checkpoint in a run's folder; None without one."""
    try:
        return int((folder / TRACKER).read_text())
    except (OSError, ValueError):
        return None
