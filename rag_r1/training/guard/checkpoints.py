"""The checkpoints of a supervised run: keeps good ones, and sets the run back to one of them.

veRL removes all but its last few checkpoints, so the last good one may be gone by the time that a sign shows.
Therefore every checkpoint is also kept under `kept/`, as hard links that take no disk space until veRL
removes its own files. Since a sign may show soon or late, the kept checkpoints are spread over the run: the
older they are, the further apart. `go_back` makes one of them the run's newest checkpoint, from which veRL
resumes.

A new learning rate alone would then have no effect: veRL restores the optimizer and the scheduler with the
rate that was saved (verl 0.9.1, fsdp_checkpoint_manager.py, `load_checkpoint`). So `set_learning_rate`
changes the saved rate, in the run's files and not in the kept ones (learning_rate.py).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rag_r1.inference.model_folders import TRACKER
from rag_r1.io.atomic_files import move_into_place, write_text
from rag_r1.runs.errors import RunError
from rag_r1.system.child_processes import last_lines
from rag_r1.training.checkpoint_steps import last_whole_step, saved_checkpoints

#: The folder of kept checkpoints in the run's folder.
KEPT = "kept"


class Checkpoints:
    """The checkpoints of the run in `folder` (`trainer.default_local_dir`), of which at most `count` are
    kept."""

    def __init__(self, folder: Path, count: int):
        self.folder = folder
        self.count = count
        self._kept_folder = folder / KEPT
        #: The steps whose checkpoints could not be kept.
        self._given_up: set[int] = set()

    def kept_steps(self) -> list[int]:
        """Return the steps of the kept checkpoints, in ascending order."""
        return list(saved_checkpoints(self._kept_folder))

    def keep(self, last_step: int) -> None:
        """Keep the run's whole checkpoints up to `last_step`, and remove surplus kept ones. One for which
        there is no room, where hard links are not possible, is named and left out."""
        last_whole = last_whole_step(self.folder)
        newest_kept = max(self.kept_steps(), default=0)
        for step, path in saved_checkpoints(self.folder).items():
            is_new = last_whole is not None and newest_kept < step <= min(last_step, last_whole)
            # Of a checkpoint that veRL has removed, the folder and the data loader's state are left.
            if is_new and step not in self._given_up and (path / "actor").is_dir():
                self._link_checkpoint(path, step)
        for step in surplus(self.kept_steps(), self.count):
            self._remove_kept(step)

    def _link_checkpoint(self, source: Path, step: int) -> None:
        """Link the run's checkpoint `source` of a step under `kept/`, unless veRL removes it meanwhile."""
        part = self._kept_folder / f"part_{step}"
        shutil.rmtree(part, ignore_errors=True)
        try:
            shutil.copytree(source, part, copy_function=_link)
        except OSError as error:
            if (source / "actor").is_dir():
                self._given_up.add(step)  # a further attempt would fill the disk again
                print(f"supervisor: {source} cannot be kept: {_copy_error(error)}", flush=True)
        else:
            if (source / "actor").is_dir():
                move_into_place(part, self.path(step))
        shutil.rmtree(part, ignore_errors=True)

    def _remove_kept(self, step: int) -> None:
        """Remove a kept checkpoint. It loses its name first: if the removal is interrupted, no part of it is
        taken for a checkpoint."""
        part = self._kept_folder / "removed"
        shutil.rmtree(part, ignore_errors=True)
        move_into_place(self.path(step), part)
        shutil.rmtree(part)

    def path(self, step: int) -> Path:
        """Return the folder of a step's kept checkpoint."""
        return self._kept_folder / f"global_step_{step}"

    def newest_up_to(self, step: int) -> int | None:
        """Return the newest kept step that is not after `step`; None if there is none."""
        return max((kept_step for kept_step in self.kept_steps() if kept_step <= step), default=None)

    def go_back(self, step: int | None) -> None:
        """Make the kept checkpoint of `step` the run's only one, and remove the kept checkpoints of later
        steps. With None, all checkpoints are removed, and the run begins anew. Raises OSError if a file
        cannot be removed, and RunError if one cannot be copied; calling it again completes the work."""
        for folder in (self.folder, self._kept_folder):
            for saved_step, path in saved_checkpoints(folder).items():
                if step is None or saved_step > step or folder == self.folder:
                    shutil.rmtree(path)
        if step is None:
            (self.folder / TRACKER).unlink(missing_ok=True)
            return
        kept = self.path(step)
        try:
            shutil.copytree(kept, self.folder / kept.name, copy_function=_link)
        except OSError as error:  # where hard links are not possible, the disk can be full
            text = f"{kept} cannot be copied to {self.folder} ({_copy_error(error)})"
            raise RunError(f"{text}: make room, and run the same command again") from error
        write_text(self.folder / TRACKER, str(step))

    def set_learning_rate(self, step: int, rate: float) -> None:
        """Change the actor's learning rate in the run's checkpoint of a step. Raises RunError if the
        checkpoint has no learning rate or cannot be read."""
        actor = self.folder / f"global_step_{step}" / "actor"
        command = [sys.executable, "-m", "rag_r1.training.guard.learning_rate", str(actor), str(rate)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            raise RunError(f"cannot change the learning rate in {actor}:\n{last_lines(process.stderr, 5)}")


def _copy_error(error: OSError) -> str:
    """Return the text of an error of `shutil.copytree`, or of the first of those that it has collected."""
    return error.args[0][0][2] if isinstance(error, shutil.Error) else str(error)


def surplus(steps: Sequence[int], count: int) -> list[int]:
    """Return which of the ascending `steps` to remove so that `count` remain.

    The last step always remains and, if `count` is above 1, so does the first. The others are removed in the
    order of the gap between their neighbours, relative to their age, so that old checkpoints are further
    apart than recent ones.
    """
    kept = list(steps)
    while len(kept) > count:
        gaps = {i: (kept[i + 1] - kept[i - 1]) / (kept[-1] - kept[i]) for i in range(1, len(kept) - 1)}
        del kept[min(gaps, key=lambda i: gaps[i]) if count > 1 else 0]
    return sorted(set(steps) - set(kept))


def _link(source: str, target: str) -> None:
    """Create a hard link to a file, or a copy where links are not possible."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
