"""Which sources a set is built from, and how many questions of each: from flags or from a YAML file.

A flag is `SOURCE[:NAME][=FILE][@N]`:

    nq                        Natural Questions from the Hub
    hotpotqa=dev.json@500     500 questions of a file
    nq=hub:dev                another split of the Hub data set
    questions:mine=my.jsonl   your own file, reported as `mine`

and a YAML file has lists of the same entries, where an entry can also join several questions in a row:

    train:
      - {source: hotpotqa, file: hotpot_train_v1.1.json, take: 5000}
      - {source: nq, take: 3000, join: 3, name: nq_3}
    validation:
      - {source: bamboogle}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data_process.row_files import DataError
from data_process.sources import SOURCES, SourceKind

#: The splits of a set, as their files are named, and the flags with which they are given.
FLAGS = {"train": "train", "test": "validation"}
_FLAG = re.compile(r"(?P<source>[^:=@]+)(?::(?P<name>[^:=@]+))?(?:=(?P<file>.+?))?(?:@(?P<take>\d+))?")
_HUB = "hub:"
_KEYS = ("source", "name", "file", "hub_split", "take", "join")


@dataclass(frozen=True)
class Entry:
    """Questions of one source in one split of the set."""

    split: str
    kind: SourceKind
    #: `data_source` of its rows, under which veRL reports them.
    name: str
    file: Path | None = None
    #: Split of the Hub data set, if not that of the table of sources.
    hub_split: str | None = None
    #: Rows that are drawn; None: all.
    take: int | None = None
    #: Questions in a row.
    join: int = 1

    @property
    def place(self) -> str:
        """Where its rows come from, for messages."""
        if self.file is not None:
            return str(self.file)
        return (
            str(self.kind.hub[FLAGS[self.split]])
            if not self.hub_split
            else f"{self.kind.name} ({self.hub_split})"
        )


def read_entries(flags: dict[str, Sequence[str]], mix: Path | None) -> list[Entry]:
    """The entries of the YAML file, then those of the flags (`flags`: split -> values). Raises DataError
    naming the entry and what is wrong with it."""
    entries = _from_yaml(mix) if mix else []
    for split, values in flags.items():
        for value in values:
            where = f"--{FLAGS[split]} {value}"
            if not (match := _FLAG.fullmatch(value)):
                raise DataError(
                    f"{where}: give SOURCE[:NAME][=FILE][@N], for example hotpotqa=train.json@500"
                )
            given: dict[str, Any] = match.groupdict()
            if given["file"] and given["file"].startswith(_HUB):
                given["hub_split"] = given.pop("file").removeprefix(_HUB)
            given["take"] = int(given["take"]) if given["take"] else None
            entries.append(_entry(where, split, {key: one for key, one in given.items() if one is not None}))
    if not entries:
        raise DataError("nothing to read: give --train SOURCE=FILE, --validation SOURCE=FILE, or --mix FILE")
    return sorted(entries, key=lambda entry: list(FLAGS).index(entry.split), reverse=True)


def _from_yaml(path: Path) -> list[Entry]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"cannot read --mix {path}: {error}") from error
    splits = {flag: split for split, flag in FLAGS.items()}
    if not isinstance(content, dict) or not set(content) <= set(splits):
        raise DataError(f"--mix {path}: needs the keys {' and '.join(splits)}, and no others")
    entries = []
    for flag, listed in content.items():
        if not isinstance(listed, list):
            raise DataError(f"--mix {path}: {flag} must be a list of entries")
        for number, given in enumerate(listed, 1):
            where = f"--mix {path}, {flag}, entry {number}"
            if not isinstance(given, dict):
                raise DataError(f"{where}: must be keys and values, for example {{source: nq, take: 500}}")
            entries.append(_entry(where, splits[flag], given))
    return entries


def _entry(where: str, split: str, given: dict[str, Any]) -> Entry:
    """An entry from its keys, checked."""
    if unknown := [str(key) for key in given if key not in _KEYS]:
        raise DataError(f"{where}: unknown key {', '.join(unknown)}: use {', '.join(_KEYS)}")
    for key in ("source", "name", "file", "hub_split"):
        if key in given and not isinstance(given[key], str):
            raise DataError(f"{where}: {key} must be a text, not {given[key]!r}")
    for key in ("take", "join"):
        if (
            isinstance(given.get(key, 1), bool)
            or not isinstance(given.get(key, 1), int)
            or given.get(key, 1) < 1
        ):
            raise DataError(f"{where}: {key} must be a whole number of at least 1, not {given[key]!r}")
    kind = SOURCES.get(given.get("source", ""))
    if kind is None:
        raise DataError(f"{where}: there is no source {given.get('source')!r}: use {', '.join(SOURCES)}")
    name = given.get("name", kind.name if given.get("join", 1) == 1 else f"{kind.name}_{given['join']}")
    if not re.fullmatch(r"[\w.-]+", name):
        raise DataError(f"{where}: the name {name!r} must have letters, digits, `_`, `.` and `-` only")
    if "file" in given and "hub_split" in given:
        raise DataError(f"{where}: give either a file or a split of the Hub data set")
    if "file" not in given and not (kind.hub if "hub_split" in given else FLAGS[split] in kind.hub):
        raise DataError(
            f"{where}: {kind.name} has no {FLAGS[split]} split on the Hub that is known here: give a file"
        )
    return Entry(
        split,
        kind,
        name,
        Path(given["file"]) if "file" in given else None,
        given.get("hub_split"),
        given.get("take"),
        given.get("join", 1),
    )
