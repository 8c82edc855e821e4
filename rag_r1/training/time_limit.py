"""`--hours`: ends a training within a time limit, right after a checkpoint.

A long training can thus be done in pieces, also on different machines. A piece that is ended loses the steps
after its last whole checkpoint. So it is ended early, right after a checkpoint, if the next checkpoint would
not be reached in time. The time to the next checkpoint is taken as the longest one so far, from one
checkpoint to the next or from the start to the first. At the limit the training is ended in any case.

The next piece needs only the run's folder, with checkpoints, logs and records. After a restart veRL does not
know the checkpoints of earlier pieces and never removes them, so the folder would grow. Therefore older
checkpoints are removed here when a piece begins and when it is ended, except for as many as
`trainer.max_actor_ckpt_to_keep` (with `rag-r1 sft`: `trainer.max_ckpt_to_keep`) says.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rag_r1.options.problems import Problem, error
from rag_r1.options.types import Constraint
from rag_r1.training.checkpoint_steps import last_whole_step, saved_checkpoints

HOURS_HELP = "end after so many hours at most, with a checkpoint; the same command goes on"
Hours = Annotated[float, Field(gt=0, allow_inf_nan=False), Constraint("a number of hours above 0")]


@dataclass
class TimeLimit:
    """Decides when a training has to end. Creating an instance starts the time, and removes older
    checkpoints."""

    hours: float
    #: The folder of the run.
    folder: Path
    #: The number of checkpoints that are kept; None, or a number below 1, for all.
    keep: int | None = None
    clock: Callable[[], float] = time.monotonic
    #: The step of the last checkpoint.
    _step: int | None = field(init=False)
    #: Times of the clock at the start, and at the last checkpoint or else at the start.
    _start: float = field(init=False)
    _last_save: float = field(init=False)
    #: The longest time between two checkpoints, or from the start to the first one.
    _longest_interval_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._last_save = self._start = self.clock()
        self._step = last_whole_step(self.folder)
        remove_older_checkpoints(self.folder, self.keep)

    def is_over(self) -> bool:
        """Return whether the training has to end: the time is over or, right after a checkpoint, would end
        before the next one. Must be called every few seconds."""
        now = self.clock()
        end = self._start + 3600 * self.hours
        step = last_whole_step(self.folder)
        if step in (self._step, None):  # None also while veRL writes the tracker
            return now >= end
        self._longest_interval_s = max(self._longest_interval_s, now - self._last_save)
        self._last_save = now
        self._step = step
        return now + self._longest_interval_s > end

    def finish(self) -> str:
        """Remove older checkpoints of the ended training, and return a sentence on how to resume it."""
        self._step = last_whole_step(self.folder)
        remove_older_checkpoints(self.folder, self.keep)
        hours = (self.clock() - self._start) / 3600
        checkpoint = "no checkpoint yet" if self._step is None else f"the checkpoint of step {self._step}"
        return (
            f"ended after {hours:.2f} of {self.hours:g} hours, with {checkpoint}. The same command goes on; "
            f"on another machine, with the folder {self.folder} ({folder_bytes(self.folder) / 1e9:.1f} GB)"
        )


def check_resume(config: Any) -> Iterator[Problem]:
    """Yield a Problem if a training of several starts would not resume from its last checkpoint."""
    if (mode := config.trainer.get("resume_mode")) != "auto":
        text = f"is {mode}, so each start would begin at the same step"
        yield error("trainer.resume_mode", text, "set it to auto")
    elif config.trainer.get("resume_from_path"):
        yield error("trainer.resume_from_path", "fine-tuning begins from it at each start", "set it to null")


def remove_older_checkpoints(folder: Path, keep: int | None) -> None:
    """Remove all checkpoints except the last `keep` whole ones, including incomplete ones after these. None
    are removed if `keep` is None or, as in veRL, not above 0. Files that cannot be removed stay: a worker of
    an ended training may still write them."""
    last = last_whole_step(folder)
    if keep is None or keep <= 0 or last is None:
        return
    checkpoints = saved_checkpoints(folder)
    whole_steps = [step for step in checkpoints if step <= last]
    for step in checkpoints.keys() - set(whole_steps[-keep:]):
        shutil.rmtree(checkpoints[step], ignore_errors=True)


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder in bytes, without following links. Files may vanish meanwhile,
    as those of a checkpoint that veRL prunes."""
    size = 0
    for path in (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names):
        with suppress(FileNotFoundError):
            size += os.lstat(path).st_size
    return size
