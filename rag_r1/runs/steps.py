"""Runs the steps of a pipeline in its folder: skips finished steps, and resumes unfinished ones.

Each step works in a folder of its own, OUT/<step>, where the name may contain a slash (`round1/agent`). The
folder has two markers:

    begun.json    written before the work starts: the step's settings, and the hash of the result of each step
                  that it builds on
    done.json     written when the step is finished: a hash of begun.json's content, the hash of the step's
                  own result, and facts for the report

The markers that are found determine what is done:

    no folder                                          run the step
    begun, with the same settings and inputs           resume the step, in its own way
    done, with the same settings and inputs            skip the step
    begun or done, with other settings                 refuse, and name the key
    done, but a result is missing                      refuse, and name the result
    the same settings, but the result of a step that   move the folder to OUT/<step>.old-1 and run the step
      it builds on has changed                           again (an earlier step's folder was removed)

So changed settings never mix with earlier results, and the settings of steps that have not begun can still be
changed. Only one process at a time, which holds the lock of OUT (lock.py), works in it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rag_r1.io.atomic_files import write_json
from rag_r1.io.file_hash import sha256_of_file
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_out
from rag_r1.runs.settings import flatten, json_hash, json_roundtrip, read_marker, refuse_changes

BEGUN, DONE = "begun.json", "done.json"
#: The state in which a step is found. `waiting` means that a step it builds on is not done.
StepState = Literal["waiting", "new", "begun", "outdated", "done"]


@dataclass(frozen=True)
class Step:
    """One step of a pipeline."""

    name: str
    #: All settings that determine the result, besides the results of the steps in `needs`.
    settings: Mapping[str, Any]
    #: Creates the results in the step's folder, or resumes from what is there. Returns facts for the report,
    #: as plain JSON values.
    work: Callable[[Path], Mapping[str, Any]]
    #: The files and folders in the step's folder that are its result.
    results: Sequence[str]
    #: The names of the steps that it builds on.
    needs: Sequence[str] = ()


class PipelineFolder:
    """The folder OUT of a pipeline. `locked` yields one whose lock this process holds."""

    def __init__(self, out: Path):
        self.out = out

    @classmethod
    @contextmanager
    def locked(cls, out: Path) -> Iterator[PipelineFolder]:
        """Hold the lock of the folder while the block runs. Raises RunError if another process holds it."""
        with hold_out(out):
            yield cls(out)

    def run(self, step: Step) -> StepState:
        """Run a step unless it is done, and return the state in which it was found. Raises RunError, and
        whatever the step's work raises."""
        folder = self.out / step.name
        plan = self._plan(step)
        state = self._state_of(step, plan)
        if state == "done":
            return state
        if state == "outdated":
            backup = _free_name(folder)
            folder.replace(backup)
            print(f"{step.name}: a step that it builds on has another result now; moved to {backup.name}")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / BEGUN, plan, private=True)
        start = time.monotonic()
        facts = dict(step.work(folder))
        record = {
            "hash": json_hash(plan),
            "result": fingerprint(folder, step.results),
            "facts": facts,
            "seconds": round(time.monotonic() - start, 1),  # of the invocation that finished the step
        }
        write_json(folder / DONE, record, private=True)
        return state

    def status(self, step: Step) -> StepState:
        """Return the state in which `run` would find a step; `waiting` if a step that it builds on is not
        done. Raises RunError if `run` would refuse the step."""
        if not all(self._record(need) for need in step.needs):
            return "waiting"
        return self._state_of(step, self._plan(step))

    def facts(self, name: str) -> dict[str, Any]:
        """Return the facts of a finished step; {} for an unfinished one."""
        return self._record(name).get("facts", {})

    def seconds(self, name: str) -> float | None:
        """Return the duration, in seconds, of the invocation that finished the step; None for an unfinished
        one."""
        return self._record(name).get("seconds")

    def _plan(self, step: Step) -> dict[str, Any]:
        """Return the content for begun.json. Raises RunError if a step that this one builds on is not
        done."""
        inputs = {}
        for need in step.needs:
            record = self._record(need)
            if not record:
                raise RunError(f"{step.name} builds on {need}, which is not done: run {need} first")
            inputs[need] = record["result"]
        return json_roundtrip({"settings": dict(step.settings), "inputs": inputs})

    def _state_of(self, step: Step, plan: Mapping[str, Any]) -> StepState:
        """Return the state of a step by comparing its markers with its plan. Raises RunError if its settings
        differ or results are missing."""
        begun = _read_marker(self.out / step.name, BEGUN)
        if not begun:
            return "new"
        recorded, current = (flatten(each["settings"], f"{step.name}.") for each in (begun, plan))
        remedy = "Give the same ones to go on, choose another --out, or remove this folder to make it again"
        refuse_changes(self.out / step.name, recorded, current, remedy)
        if begun["inputs"] != plan["inputs"]:
            return "outdated"
        record = self._record(step.name)
        # The recorded plan, since the current one may write equal settings in another way (1 and 1.0).
        if record.get("hash") != json_hash(begun):
            return "begun"
        if missing := [name for name in step.results if not (self.out / step.name / name).exists()]:
            raise RunError(
                f"{self.out / step.name} is marked as done, but {', '.join(missing)} is missing: remove the "
                "folder to make the step again"
            )
        return "done"

    def _record(self, name: str) -> dict[str, Any]:
        """Return the content of done.json; {} for an unfinished step."""
        return _read_marker(self.out / name, DONE)


def fingerprint(folder: Path, names: Sequence[str]) -> str:
    """Return a hash of the names and contents of files, and of all files in folders. Raises RunError if one
    of them is missing, and OSError if one cannot be read."""
    digest = hashlib.sha256()
    for name in names:
        path = folder / name
        if not path.exists():
            raise RunError(f"{path} is missing: the step has not left its result")
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in files:
            digest.update(os.fsencode(file.relative_to(folder)) + b"\0")
            digest.update(bytes.fromhex(sha256_of_file(file)))
    return digest.hexdigest()


def _free_name(folder: Path) -> Path:
    """Return the first of OUT/<step>.old-1, .old-2 and so on that does not exist."""
    candidates = (folder.with_name(f"{folder.name}.old-{number}") for number in itertools.count(1))
    return next(path for path in candidates if not path.exists())


def _read_marker(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a marker; {} if there is none. Raises RunError if it cannot be read, or lacks
    what `run` writes."""
    marker = read_marker(folder / name, f"remove the folder {folder}")
    keys = ("settings", "inputs") if name == BEGUN else ("hash", "result")
    kind = dict if name == BEGUN else str
    if marker and (wrong := [key for key in keys if not isinstance(marker.get(key), kind)]):
        raise RunError(f"{folder / name} has no valid {', '.join(wrong)}: remove the folder {folder}")
    return marker
