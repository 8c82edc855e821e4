"""The checkpoints of a supervised run: good ones are kept, and a run goes back to one.

veRL removes all but its last few checkpoints, and when a sign shows the last good one may be among the
removed. So every checkpoint is kept a second time under `kept/` as hard links, which take no room until veRL
removes its own. A sign may show soon or late, so the kept ones are not the last ones: the older, the further
apart. `go_back` makes one of them the run's last: veRL resumes from the step that its file
`latest_checkpointed_iteration.txt` names.

A changed learning rate would have no effect after that: veRL restores optimizer and scheduler with the
learning rate that they had (verl 0.9.1, fsdp_checkpoint_manager.py, `load_checkpoint`). So it is changed in
their files (learning_rate.py), in copies of the kept ones.
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

KEPT = "kept"


class Checkpoints:
    """The checkpoints of the run in `folder` (`trainer.default_local_dir`), of which `count` are kept."""

    def __init__(self, folder: Path, count: int):
        self.folder = folder
        self.count = count
        self._kept_folder = folder / KEPT

    def kept_steps(self) -> list[int]:
        """The steps of the kept checkpoints, in order."""
        return list(saved_checkpoints(self._kept_folder))

    def keep(self, last: int) -> None:
        """Keeps the run's whole checkpoints up to the step `last`, and removes kept ones beyond `count`."""
        last_whole = last_whole_step(self.folder)
        newest = max(self.kept_steps(), default=0)
        for step in saved_checkpoints(self.folder):
            if last_whole is not None and newest < step <= min(last, last_whole):
                self._link_checkpoint(step)
        for step in surplus(self.kept_steps(), self.count):
            shutil.rmtree(self.path(step))

    def _link_checkpoint(self, step: int) -> None:
        """Links the run's checkpoint of a step under `kept/`; one that veRL removes meanwhile is left out."""
        target = self.path(step)
        part = self._kept_folder / f"part_{step}"
        shutil.rmtree(part, ignore_errors=True)
        try:
            shutil.copytree(self.folder / target.name, part, copy_function=_link)
        except (FileNotFoundError, shutil.Error):
            shutil.rmtree(part, ignore_errors=True)
            return
        move_into_place(part, target)

    def mend_tracker(self) -> None:
        """Names the last whole checkpoint again, once a training has ended. veRL empties its tracker before
        it writes the next step there (verl 0.9.1, trainer_base.py, `_save_checkpoint`), and a training that
        is killed in between could not be resumed; of the checkpoint that it had just saved nothing is
        known."""
        tracker = self.folder / TRACKER
        if not tracker.exists() or last_whole_step(self.folder) is not None:
            return
        if whole_steps := list(saved_checkpoints(self.folder))[:-1]:
            write_text(tracker, str(whole_steps[-1]))
        else:
            tracker.unlink()

    def path(self, step: int) -> Path:
        """The kept checkpoint of a step."""
        return self._kept_folder / f"global_step_{step}"

    def newest_up_to(self, step: int) -> int | None:
        """The last kept step up to this one; None without one."""
        return max((kept_step for kept_step in self.kept_steps() if kept_step <= step), default=None)

    def go_back(self, step: int | None) -> None:
        """Makes the kept checkpoint of this step the run's only one; with None the run begins anew. Kept
        checkpoints of later steps are removed as well."""
        for folder in (self.folder, self._kept_folder):
            for saved_step, path in saved_checkpoints(folder).items():
                if step is None or saved_step > step or folder == self.folder:
                    shutil.rmtree(path)
        if step is None:
            (self.folder / TRACKER).unlink(missing_ok=True)
            return
        shutil.copytree(self.path(step), self.folder / f"global_step_{step}", copy_function=_link)
        write_text(self.folder / TRACKER, str(step))

    def set_learning_rate(self, step: int, rate: float) -> None:
        """Changes the actor's learning rate in the run's checkpoint of this step. Raises RunError if the
        checkpoint has none, or cannot be read."""
        actor = self.folder / f"global_step_{step}" / "actor"
        command = [sys.executable, "-m", "rag_r1.training.guard.learning_rate", str(actor), str(rate)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            raise RunError(f"cannot change the learning rate in {actor}:\n{last_lines(process.stderr, 5)}")


def surplus(steps: Sequence[int], count: int) -> list[int]:
    """Returns which of these steps, in order, are more than `count`: never the last, and of the others those
    that are closest to their neighbours for their age."""
    pool = list(steps)
    while len(pool) > count:
        gaps = {i: (pool[i + 1] - pool[i - 1]) / (pool[-1] - pool[i]) for i in range(1, len(pool) - 1)}
        del pool[min(gaps, key=lambda i: gaps[i]) if count > 1 and gaps else 0]
    return sorted(set(steps) - set(pool))


def _link(source: str, target: str) -> None:
    """Links a file, or copies it where that is not possible."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
