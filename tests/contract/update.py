"""Writes the table of pinned names from the installed veRL, or shows what a new veRL has changed.

    python -m tests.contract.update                  write names.yaml and lines.json
    python -m tests.contract.update --check          print what differs from the table, and write nothing
    python -m tests.contract.update --diff OLD.whl   print the changed names as a diff from that wheel of veRL

Before a new table is committed, each change in it has been read: docs/upgrading_verl.md.
"""

from __future__ import annotations

import argparse
import sys
from difflib import unified_diff
from pathlib import Path

from tests.contract.contacts import Scan
from tests.contract.table import Table, members_apart
from tests.contract.verl_source import Sources, in_wheel, installed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="print what differs, and write nothing")
    choice.add_argument("--diff", type=Path, metavar="OLD.whl", help="print a diff from that wheel of veRL")
    args = parser.parse_args(arguments)
    sources = installed()
    if "verl" not in sources.roots:
        print("veRL is not installed here", file=sys.stderr)
        return 1
    if args.diff:
        print(diff(Table.read(), in_wheel(args.diff), sources))
        return 0
    if args.check:
        report = Table.read().report(sources)
        print(report or "nothing has changed")
        return 1 if report else 0
    scan = Scan(sources)
    if scan.faults:
        print("not written:", *scan.faults, sep="\n", file=sys.stderr)
        return 1
    table = Table.pinned(scan)
    table.write()
    print(f"{len(table.rows)} names of veRL {table.versions['verl']} are pinned")
    return 0


def diff(table: Table, old: Sources, new: Sources) -> str:
    """The changed names of the table, each as a unified diff of its code."""
    parts = []
    for module, name in table.changes(new):
        apart = members_apart(module, name, table.rows)
        texts = []
        for sources in (old, new):
            definition = sources.find(module, name)
            texts.append([text for _, text in definition.lines(apart)] if definition else [])
        title = f"{module}:{name}"
        parts += unified_diff(*texts, f"old/{title}", f"new/{title}", lineterm="")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
