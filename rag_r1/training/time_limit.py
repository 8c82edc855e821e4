"""`--hours`: ends a training in time, right after a checkpoint, so that it can go on on another machine.

What counts of a training that is ended is its last whole checkpoint; the steps after it are done again. So it
is ended early: after a checkpoint from which the next one would not be reached in time, as long as the
longest of the times between two of them so far (for the first one, since the start). At the limit it is ended
in any case.

The run's folder is all that the next piece needs: checkpoints, logs and records. At a restart veRL forgets
which checkpoints it has saved and never removes those of an earlier piece, so the folder would grow: here the
older ones are removed when a piece begins and when it is ended, as far as `trainer.max_actor_ckpt_to_keep`
(of `rag-r1 sft`: `trainer.max_ckpt_to_keep`) says.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rag_r1.options.declare import Constraint
from rag_r1.options.problems import Problem, error
from rag_r1.training.checkpoint_steps import last_whole_step, saved_checkpoints

Hours = Annotated[float, Field(gt=0, allow_inf_nan=False), Constraint("a number of hours above 0")]


@dataclass
class TimeLimit:
    """Says whether a training in `folder` has to end. `hours` count from when the object is made, which also
    removes older checkpoints. `keep`: how many checkpoints stay; None: all."""

    hours: float
    folder: Path
    keep: int | None = None
    clock: Callable[[], float] = time.monotonic
    _last_save: float = field(init=False)
    _longest_interval_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._last_save = self._start = self.clock()
        self._step = last_whole_step(self.folder)
        remove_older_checkpoints(self.folder, self.keep)

    def is_over(self) -> bool:
        """Whether the time is over or, right after a checkpoint, ends before another one would be reached. To
        be called every few seconds."""
        now = self.clock()
        end = self._start + 3600 * self.hours
        step = last_whole_step(self.folder)
        if step == self._step:
            return now >= end
        self._longest_interval_s = max(self._longest_interval_s, now - self._last_save)
        self._last_save = now
        self._step = step
        return now + self._longest_interval_s > end

    def finish(self) -> str:
        """Removes older checkpoints of a training that was ended; returns a sentence on what to do next."""
        self._step = last_whole_step(self.folder)
        remove_older_checkpoints(self.folder, self.keep)
        hours = (self.clock() - self._start) / 3600
        checkpoint = "no checkpoint yet" if self._step is None else f"the checkpoint of step {self._step}"
        return (
            f"ended after {hours:.2f} of {self.hours:g} hours, with {checkpoint}. The same command goes on; "
            f"on another machine, with the folder {self.folder} ({folder_bytes(self.folder) / 1e9:.1f} GB)"
        )


def check_resume(config: Any) -> Iterator[Problem]:
    """A Problem if a training in pieces would not go on from its last checkpoint."""
    if config.trainer.get("resume_mode") == "disable":
        text = "is disable, so each piece of --hours would begin anew"
        yield error("trainer.resume_mode", text, "set it to auto")


def remove_older_checkpoints(folder: Path, keep: int | None) -> None:
    """Removes all checkpoints but the last `keep` whole ones; with them what was begun after the last."""
    last = last_whole_step(folder)
    if not keep or last is None:
        return
    checkpoints = saved_checkpoints(folder)
    whole_steps = [step for step in checkpoints if step <= last]
    for step in checkpoints.keys() - set(whole_steps[-keep:]):
        shutil.rmtree(checkpoints[step])


def folder_bytes(folder: Path) -> int:
    """The size of all files in a folder, links not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() or path.is_symlink())
