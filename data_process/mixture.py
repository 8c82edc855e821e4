"""Reads the mixture of a set: its sources and the number of rows of each.

`read_entries` turns the flags of `rag-r1 data` and its YAML file into `MixEntry` objects, which the rest of
the package works with. A flag has the form `SOURCE[:NAME][=FILE][@N]`:

    nq                        Natural Questions from the Hub
    hotpotqa=dev.json@500     500 questions of a file
    nq=hub:dev                another split of the Hub data set
    questions:mine=my.jsonl   your own file, reported as `mine`

A YAML file has lists of the same entries, where an entry can also join several questions in a row:

    train:
      - {source: hotpotqa, file: hotpot_train_v1.1.json, take: 5000}
      - {source: nq, take: 3000, join: 3, name: nq_3}
    validation:
      - {source: bamboogle}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from data_process.sources import SOURCES, SourceKind
from data_process.sources.source_kind import HubSplit
from rag_r1.io.bounded_yaml import YamlError, read_yaml
from rag_r1.io.errors import DataError, reason_of
from rag_r1.options.declare import OptionsError, options
from rag_r1.options.from_config import options_from
from rag_r1.options.suggestions import did_you_mean
from rag_r1.options.types import PositiveCount, Text
from rag_r1.runs.start_checks import StartChecks

#: Split of a set, as its file is named -> the flag for its sources.
FLAGS = {"train": "train", "test": "validation"}
_FLAG = re.compile(r"(?P<source>[^:=@]+)(?::(?P<name>[^:=@]+))?(?:=(?P<file>.+?))?(?:@(?P<take>[1-9]\d*))?")
_FLAG_FORM = "SOURCE[:NAME][=FILE][@N], for example hotpotqa=train.json@500"
#: Prefix of a split of the Hub data set in place of a file.
_HUB_PREFIX = "hub:"
_MIX_KEYS = f"it needs a list under {' or '.join(FLAGS.values())}, or both, and no other keys"


@dataclass(frozen=True)
class MixEntry:
    """Questions of one source in one split of the set."""

    split: str
    kind: SourceKind
    #: `data_source` of its rows, under which veRL reports them.
    name: str
    #: File of its rows; None for the Hub.
    file: Path | None = None
    #: Split of the Hub data set, if it differs from the one in the table of sources.
    hub_split: str | None = None
    #: Number of rows that are drawn; None for all rows.
    take: int | None = None
    #: Number of questions that are joined in a row.
    join: int = 1
    #: The flag or the line of the YAML file that holds the entry, as messages name it.
    label: str = field(default="", compare=False)

    @property
    def hub(self) -> HubSplit:
        """The split of the Hub data set: the entry's, or else the one in the table of sources."""
        if self.hub_split is None:
            return self.kind.hub[FLAGS[self.split]]
        return replace(next(iter(self.kind.hub.values())), split=self.hub_split)

    @property
    def location(self) -> str:
        """The file or the Hub split that holds the rows, as messages name it."""
        return str(self.file or self.hub)


@options("entry")
class MixEntryOptions:
    """The keys of an entry in the YAML file; `MixEntry` explains them."""

    source: Text = ""
    name: Text | None = None
    file: Text | None = None
    hub_split: Text | None = None
    take: PositiveCount | None = None
    join: PositiveCount = 1


def read_entries(flags: dict[str, Sequence[str]], mix: Path | None, checks: StartChecks) -> list[MixEntry]:
    """Return the entries of the YAML file and of the flags (`flags`: split -> values), those of test first.

    Entries that cannot be read are left out; `checks` collects their problems, each with its location.
    """
    parsers: list[Callable[[], MixEntry]] = []
    if mix:
        for flag, items in (checks.run(_read_mix, mix) or {}).items():
            parsers += checks.run(_entry_parsers, mix, flag, items) or []
    entries = [checks.run(parse) for parse in parsers]
    entries += [checks.run(_from_flag, split, value) for split, values in flags.items() for value in values]
    if not entries and not mix:
        remedy = "give --train SOURCE=FILE, --validation SOURCE=FILE, or --mix FILE"
        checks.add(DataError(f"nothing to read: {remedy}"))
    readable = [entry for entry in entries if entry is not None]
    # The questions that are drawn for test decide which rows of train are dropped.
    return sorted(readable, key=lambda entry: entry.split != "test")


def _from_flag(split: str, value: str) -> MixEntry:
    """Return the entry of a flag. Raises DataError if it does not have the form of one."""
    label = f"--{FLAGS[split]} {value}"
    if not (match := _FLAG.fullmatch(value)):
        raise DataError(f"{label}: give {_FLAG_FORM}")
    source, name, file, take = match["source"], match["name"], match["file"], match["take"]
    path = Path(name or source)
    if file is None and (path.exists() if name else source not in SOURCES and path.suffix):
        example = f"{source if name else 'questions'}={path}"
        text = f"a file is given as SOURCE=FILE, such as --{FLAGS[split]} {example}"
        raise DataError(f"{label}: {text}, where SOURCE is {', '.join(SOURCES)}")
    hub_split = file.removeprefix(_HUB_PREFIX) if file and file.startswith(_HUB_PREFIX) else None
    if file and "@" in file and (hub_split or not Path(file).exists()):
        count = file.rpartition("@")[2]
        problem = f"{count!r} after the @ is not a whole number above 0, and there is no file {file}"
        raise DataError(f"{label}: {problem}: give {_FLAG_FORM}")
    parsed = MixEntryOptions(
        source=source,
        name=name,
        file=None if hub_split else file,
        hub_split=hub_split,
        take=int(take) if take else None,
    )
    return _from_options(label, split, parsed)


def _read_mix(path: Path) -> dict[Any, Any]:
    """Read the YAML file: flag -> its list of entries.

    Raises DataError if it is not a mapping with entries.
    """
    try:
        content = read_yaml(path)
    except (OSError, YamlError) as error:
        remedy = "correct its YAML" if isinstance(error, YamlError) else "give another file"
        raise DataError(f"cannot read --mix {path}: {reason_of(error)}: {remedy}") from error
    if not isinstance(content, dict):
        raise DataError(f"--mix {path}: {_MIX_KEYS}")
    if all(flag in FLAGS.values() and entries == [] for flag, entries in content.items()):
        raise DataError(f"nothing to read: --mix {path} has no entries")
    return content


def _entry_parsers(path: Path, flag: Any, entries: Any) -> list[Callable[[], MixEntry]]:
    """Return a function for each entry under a flag of the YAML file, which parses that entry.

    Raises DataError for a key that is no flag, and for a value that is no list.
    """
    split = next((split for split, name in FLAGS.items() if name == flag), None)
    if split is None:
        raise DataError(f"--mix {path}: unknown key {flag}: {_MIX_KEYS}")
    if not isinstance(entries, list):
        raise DataError(f"--mix {path}: {flag} must be a list of entries")
    label = f"--mix {path}, {flag}, entry"
    return [partial(_from_keys, f"{label} {number}", split, keys) for number, keys in enumerate(entries, 1)]


def _from_keys(label: str, split: str, values: Any) -> MixEntry:
    """Return the entry with these keys of the YAML file. Raises DataError if they are invalid."""
    if not isinstance(values, dict):
        raise DataError(f"{label}: must be keys and values, for example {{source: nq, take: 500}}")
    try:
        return _from_options(label, split, options_from(MixEntryOptions, values))
    except OptionsError as error:
        raise DataError(f"{label}: {error}") from error


def _from_options(label: str, split: str, values: MixEntryOptions) -> MixEntry:
    """Return the entry with these options. Raises DataError if they do not fit the table of sources."""
    kind = SOURCES.get(values.source)
    if kind is None:
        hint = " ".join(filter(None, [did_you_mean(values.source, SOURCES), f"use {', '.join(SOURCES)}"]))
        raise DataError(f"{label}: there is no source {values.source!r}: {hint}")
    name = values.name or (kind.name if values.join == 1 else f"{kind.name}_{values.join}")
    if not re.fullmatch(r"[\w.-]+", name):
        raise DataError(f"{label}: the name {name!r} must have letters, digits, `_`, `.` and `-` only")
    if values.file and values.hub_split:
        raise DataError(f"{label}: give either a file or a split of the Hub data set")
    if not values.file and not (kind.hub if values.hub_split else FLAGS[split] in kind.hub):
        raise DataError(
            f"{label}: {kind.name} has no {FLAGS[split]} split on the Hub that is known here: give a file"
        )
    file = Path(values.file) if values.file else None
    return MixEntry(split, kind, name, file, values.hub_split, values.take, values.join, label)
