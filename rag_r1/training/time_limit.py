"""`--hours`: ends a training in time, right after a checkpoint, so that it can go on on another machine.

What counts of a training that is ended is its last whole checkpoint; the steps after it are done again. So it
is ended early: after a checkpoint from which the next one would not be reached in time, as long as the
longest of the times between two of them so far (for the first one, since the start). At the limit it is ended
in any case.

veRL names its last whole checkpoint in `latest_checkpointed_iteration.txt`, which it writes after everything
else of the checkpoint. The run's folder is all that the next piece needs: checkpoints, logs and records. At a
restart veRL forgets which checkpoints it has saved and never removes those of an earlier piece, so the folder
would grow: here the older ones are removed when a piece begins and when it is ended, as far as
`trainer.max_actor_ckpt_to_keep` (of `rag-r1 sft`: `trainer.max_ckpt_to_keep`) says.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rag_r1.inference.model_folders import TRACKER
from rag_r1.options.declare import Constraint
from rag_r1.options.problems import Problem, error

Hours = Annotated[float, Field(gt=0, allow_inf_nan=False), Constraint("a number of hours above 0")]
_CHECKPOINT = re.compile(r"global_step_(\d+)")


@dataclass
class TimeLimit:
    """Asked now and then whether a training in `folder` has to end: `is_over()`. `hours` count from when this
    is made. `keep`: how many checkpoints stay; None: all."""

    hours: float
    folder: Path
    keep: int | None = None
    clock: Callable[[], float] = time.monotonic
    _last_time: float = field(init=False)
    _longest_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._last_time = self._start = self.clock()
        self._step = last_checkpoint(self.folder)
        remove_older(self.folder, self.keep)

    def is_over(self) -> bool:
        """Whether the time is over, or ends before another checkpoint would be reached."""
        now, step = self.clock(), last_checkpoint(self.folder)
        end = self._start + 3600 * self.hours
        if step == self._step:
            return now >= end
        self._longest_s = max(self._longest_s, now - self._last_time)
        self._last_time, self._step = now, step
        return now + self._longest_s > end

    def report(self) -> str:
        """What to do next; for a training that was ended. Older checkpoints are removed first."""
        self._step = last_checkpoint(self.folder)
        remove_older(self.folder, self.keep)
        hours = (self.clock() - self._start) / 3600
        place = "no checkpoint yet" if self._step is None else f"the checkpoint of step {self._step}"
        return (
            f"ended after {hours:.2f} of {self.hours:g} hours, with {place}. The same command goes on; on "
            f"another machine, with the folder {self.folder} ({folder_bytes(self.folder) / 1e9:.1f} GB)"
        )


def check_resume(config: Any) -> Iterator[Problem]:
    """A training in pieces goes on from its last checkpoint."""
    if config.trainer.get("resume_mode") == "disable":
        text = "is disable, so each piece of --hours would begin anew"
        yield error("trainer.resume_mode", text, "set it to auto")


def last_checkpoint(folder: Path) -> int | None:
    """The step of the last whole checkpoint in a run's folder; None without one."""
    try:
        return int((folder / TRACKER).read_text())
    except (OSError, ValueError):
        return None


def remove_older(folder: Path, keep: int | None) -> None:
    """Remove all checkpoints but the last `keep` whole ones; with them what was begun after the last."""
    last = last_checkpoint(folder)
    if not keep or last is None:
        return
    steps = {int(match[1]): path for path in folder.iterdir() if (match := _CHECKPOINT.fullmatch(path.name))}
    whole_steps = sorted((step for step in steps if step <= last), reverse=True)
    for step in steps.keys() - set(whole_steps[:keep]):
        shutil.rmtree(steps[step])


def folder_bytes(folder: Path) -> int:
    """The size of all files in a folder, links not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() or path.is_symlink())
