"""The table of pinned names (names.yaml), and what has changed since it was written.

names.yaml has, for each module of veRL and each name in it, where we use it (by kinds, contacts.py), its
signature and its hash. lines.json has the hashes of its lines, six digits each, in order. Both are written by
update.py and hold no source of veRL.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from tests.contract.contacts import Scan
from tests.contract.verl_source import Definition, Sources

HERE = Path(__file__).parent
NAMES, LINES = "names.yaml", "lines.json"
_HEAD = """\
# What this project uses of veRL and its store, by module and name: the files that use it, by kinds (see
# contacts.py), its signature, the hash of its syntax tree. Written by `python -m tests.contract.update`.
"""
_ADVICE = """\
{count} of the names that this project uses of veRL are no longer those of veRL {pinned} (installed: {now}).
What to do is told in docs/upgrading_verl.md. The whole difference:
  pip download verl=={pinned} --no-deps -d old
  python -m tests.contract.update --diff old/verl-{pinned}-py3-none-any.whl
When each change has been read, and what it asks for is done: python -m tests.contract.update"""
_DIGITS = 6
#: Unchanged lines that are shown before changed ones.
_BEFORE = 2


@dataclass(frozen=True)
class Row:
    """One pinned name."""

    module: str
    name: str
    uses: dict[str, list[str]]
    signature: str
    hash: str
    lines: list[str]

    @property
    def key(self) -> tuple[str, str]:
        return self.module, self.name

    @property
    def used(self) -> str:
        return "; ".join(f"{kind} in {', '.join(places)}" for kind, places in self.uses.items())


@dataclass(frozen=True)
class Table:
    """All pinned names, and the versions in which they were pinned."""

    versions: dict[str, str]
    rows: dict[tuple[str, str], Row]

    @classmethod
    def pinned(cls, scan: Scan) -> Table:
        """From the installed versions."""
        rows = {}
        names = scan.contacts.keys()
        for module, name in sorted(names):
            target = scan.sources.find(module, name)
            uses = {kind: sorted(places) for kind, places in sorted(scan.contacts[module, name].items())}
            apart = members_apart(module, name, names)
            lines = [line_hash(text) for _, text in target.lines(apart)]
            rows[module, name] = Row(module, name, uses, target.signature, target.digest(apart), lines)
        return cls({name: metadata.version(name) for name in ("verl", "TransferQueue")}, rows)

    @classmethod
    def read(cls, folder: Path = HERE) -> Table:
        data = yaml.load((folder / NAMES).read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        lines = json.loads((folder / LINES).read_text("utf-8"))
        rows = {}
        for module, names in data["names"].items():
            for name, row in names.items():
                packed = lines[f"{module}:{name}"]
                cut = [packed[i : i + _DIGITS] for i in range(0, len(packed), _DIGITS)]
                signature, digest = row.pop("signature"), row.pop("hash")
                rows[module, name] = Row(module, name, row, signature, digest, cut)
        return cls(data["versions"], rows)

    def write(self, folder: Path = HERE) -> None:
        names: dict[str, dict[str, Any]] = {}
        for row in self.rows.values():
            content = {**row.uses, "signature": row.signature, "hash": row.hash}
            names.setdefault(row.module, {})[row.name] = content
        data = {"versions": self.versions, "names": names}
        dumped = yaml.safe_dump(data, sort_keys=False, width=10_000, default_flow_style=None)
        (folder / NAMES).write_text(_HEAD + dumped, "utf-8")
        lines = {f"{row.module}:{row.name}": "".join(row.lines) for row in self.rows.values()}
        (folder / LINES).write_text(json.dumps(lines, indent=0) + "\n", "utf-8")

    def of(self, *modules: str) -> Table:
        """The rows of some modules only."""
        rows = {key: row for key, row in self.rows.items() if row.module in modules}
        return Table(self.versions, rows)

    def report(self, sources: Sources) -> str:
        """All changes and what to do about them; empty if there are none."""
        changes = self.changes(sources)
        if not changes:
            return ""
        pinned, now = self.versions["verl"], metadata.version("verl")
        advice = _ADVICE.format(count=len(changes), pinned=pinned, now=now)
        return "\n\n".join([*changes.values(), advice])

    def changes(self, sources: Sources) -> dict[tuple[str, str], str]:
        """What each changed name has become in `sources`, for people."""
        definitions = {key: sources.find(*key) for key in self.rows}
        reports = {}
        for key, row in self.rows.items():
            here = definitions[key]
            if here is None or here.key != key:
                reports[key] = _missing(row, here, sources)
            elif here.digest(apart := members_apart(*key, self.rows)) != row.hash:
                reports[key] = _changed(row, here, here.lines(apart))
        return reports


def members_apart(module: str, name: str, keys: Any) -> set[str]:
    """The members of a class that are pinned by themselves."""
    return {
        other.removeprefix(f"{name}.")
        for other_module, other in keys
        if other_module == module and other.startswith(f"{name}.")
    }


def line_hash(text: str) -> str:
    return sha256(text.strip().encode()).hexdigest()[:_DIGITS]


def _missing(row: Row, here: Definition | None, sources: Sources) -> str:
    lines = [f"{row.module}: {row.name} is gone ({row.used})", f"  it was {row.signature}"]
    if here is not None:
        lines.append(f"  now it is {here.name} of {here.module.name}")
    else:
        lines += [f"  there is one of that name in {place}" for place in _elsewhere(row, sources)]
    return "\n".join(lines)


def _elsewhere(row: Row, sources: Sources) -> list[str]:
    """The files of the package in which something of that name is defined."""
    top = row.module.partition(".")[0]
    defined = re.compile(rf"^ *(?:class|def|async def) {re.escape(row.name.rpartition('.')[2])}\b", re.M)
    root = sources.roots.get(top)
    files = sorted(root.rglob("*.py")) if isinstance(root, Path) else []  # not in a wheel
    return [
        str(path.relative_to(sources.roots[top].parent))
        for path in files
        if defined.search(path.read_text("utf-8"))
    ]


def _changed(row: Row, here: Definition, lines: list[tuple[int, str]]) -> str:
    report = [f"{row.module}: {row.name} has changed ({row.used})"]
    if here.signature != row.signature:
        report += [f"  its signature was {row.signature}", f"                 is {here.signature}"]
    report.append(f"  {here.module.path}, from line {here.line} (+ new lines, - how many are gone):")
    hashes = [line_hash(text) for _, text in lines]
    reported = 0
    steps = SequenceMatcher(None, row.lines, hashes, autojunk=False).get_opcodes()
    for kind, old, old_end, new, new_end in steps:
        if kind != "equal":
            report += [_line(" ", line) for line in lines[max(reported, new - _BEFORE) : new]]
            report += [f"  - {old_end - old:5d}  gone"] if old_end > old else []
            report += [_line("+", line) for line in lines[new:new_end]]
            reported = new_end
    if row.lines == hashes:
        report.append("  the same lines, nested or broken in another way")
    return "\n".join(report)


def _line(sign: str, line: tuple[int, str]) -> str:
    return f"  {sign} {line[0]:5d}  {line[1]}"
