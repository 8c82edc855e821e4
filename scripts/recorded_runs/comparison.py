"""Compares two recordings by the contents of their files.

JSON and parquet files are compared value by value, and texts line by line. All other files, such as pictures
or the arrays of an index, must have the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .normaliser import PROGRESS, Normaliser

#: The file with the paths of the recording, and the seconds and statuses of each run; it is not compared.
SUMMARY = "recorded.json"
_MISSING = "<missing>"


@dataclass
class Comparison:
    """The result of comparing two recordings."""

    normaliser: Normaliser
    #: Run -> number of compared files.
    files: Counter[str] = field(default_factory=Counter)
    #: Run -> number of compared values.
    values: Counter[str] = field(default_factory=Counter)
    #: A line for each difference.
    differences: list[str] = field(default_factory=list)

    def compare_folders(self, old: Path, new: Path) -> None:
        """Compare all files of two recordings."""
        old_files, new_files = _files(old, 0, self.normaliser), _files(new, 1, self.normaliser)
        for name in sorted(old_files.keys() | new_files.keys()):
            run = name.partition("/")[0]
            self.files[run] += 1
            if name in old_files and name in new_files:
                self._compare_values(name, content(old_files[name]), content(new_files[name]), run)
            else:
                self.differences.append(f"{name}: only in {'NEW' if name in new_files else 'OLD'}")

    def _compare_values(self, path: str, old: Any, new: Any, run: str) -> None:
        """Add the differences of two JSON values; `path` is their file and the keys that lead to them."""
        if isinstance(old, dict) and isinstance(new, dict):
            self._compare_objects(path, old, new, run)
        elif isinstance(old, list) and isinstance(new, list):
            if len(old) != len(new):
                self.differences.append(f"{path}: {len(old)} entries, now {len(new)}")
            for index, (first, second) in enumerate(zip_longest(old, new, fillvalue=_MISSING)):
                self._compare_values(f"{path}[{index}]", first, second, run)
        else:
            self.values[run] += 1
            if isinstance(old, str) and isinstance(new, str):
                old, new = self.normaliser.normalise(old, new)
            both_nan = old != old and new != new
            if type(old) is not type(new) or (old != new and not both_nan):
                self.differences.append(f"{path}: {_short(old, new)}")

    def _compare_objects(self, path: str, old: Mapping[str, Any], new: Mapping[str, Any], run: str) -> None:
        """Add the differences of two JSON objects: in keys, their order, and values."""
        if list(old) != list(new) and old.keys() == new.keys():
            self.differences.append(f"{path}: keys in another order")
        first, second = (
            {self.normaliser.normalise(key, key)[side]: value for key, value in values.items()}
            for side, values in enumerate((old, new))
        )
        for key in first | second:
            hiding = self.normaliser.field_of_key(key)
            if key not in first or key not in second:
                self.differences.append(f"{path}.{key}: only in {'NEW' if key in second else 'OLD'}")
            elif hiding is not None:
                self.values[run] += 1
                self.normaliser.count_hidden(hiding, first[key] != second[key])
            else:
                self._compare_values(f"{path}.{key}", first[key], second[key], run)


def _short(old: Any, new: Any, width: int = 160) -> str:
    """Return both values as text, each from a little before their first difference on."""
    first, second = repr(old), repr(new)
    start = max(0, len(os.path.commonprefix([first, second])) - width // 3)
    return f"{first[start : start + width]}  ->  {second[start : start + width]}"


def _files(folder: Path, side: int, normaliser: Normaliser) -> dict[str, Path]:
    """Return the files of the old recording (side 0) or the new one (side 1) by their normalised names."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.is_symlink() or path.is_file()) and name != SUMMARY:
            files[normaliser.normalise(name, name)[side]] = path
    return files


def content(path: Path) -> Any:
    """Return the contents of a file as values to compare."""
    if path.is_symlink():
        return {"link": str(path.readlink())}
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        return {"schema": str(table.schema), "rows": table.to_pylist()}
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)}
    try:
        if path.suffix == ".json":
            return json.loads(text)
        if path.suffix in (".jsonl", ".ndjson"):
            return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        pass  # it is not JSON, whatever its name says, and is compared as text
    # Lines do not end at \r, where a progress bar is redrawn. Lines with only a progress bar are left out.
    return [line for line in text.split("\n") if PROGRESS.hide_in(line).strip()]


def compare_recordings(old: Path, new: Path, modules: Mapping[str, str], max_lines: int) -> int:
    """Compare two recordings, and print the numbers of files and values and at most `max_lines` differences.

    `modules` has the old and the new paths of renamed modules. Returns 1 if there is a difference, else 0.
    Raises SystemExit if a folder is not a recording.
    """
    for folder in (old, new):
        if not (folder / SUMMARY).is_file():
            raise SystemExit(f"{folder} is not a recording: it has no {SUMMARY}")
    summaries = [json.loads((folder / SUMMARY).read_text("utf-8")) for folder in (old, new)]
    result = Comparison(Normaliser((summaries[0]["places"], summaries[1]["places"]), modules))
    for folder, summary in zip((old, new), summaries, strict=True):
        faults = {run: entry["fault"] for run, entry in summary["runs"].items() if entry["fault"]}
        result.differences += [f"{folder}: {run} was not recorded: {fault}" for run, fault in faults.items()]
    result.compare_folders(old, new)
    for run, count in result.files.items():
        print(f"{run:12} {count:5,} files, {result.values[run]:9,} values")
    print(f"{'all':12} {result.files.total():5,} files, {result.values.total():9,} values")
    print("fields of the normaliser:")
    print("\n".join(result.normaliser.table()))
    for line in result.differences[:max_lines]:
        print(f"DIFFERS {line}")
    print(f"{len(result.differences)} differences" if result.differences else "equal")
    return int(bool(result.differences))
