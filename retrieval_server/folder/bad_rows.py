"""Counts the rows of a corpus that cannot be used.

The rule is that of rag_r1/data/files/bad_rows.py. This is a copy, since this package must not import rag_r1.

A bad row is counted, and the first five are named with their place and the reason. Then nothing is written
and the script ends with a status other than 0; with `--skip-bad-rows` these rows are counted and named too,
but left out, and the others are used. A whole file is read before it is refused, so that one run shows every
fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Bad rows that are named; the others are counted.
NAMED = 5


@dataclass
class BadRows:
    """How many rows cannot be used, and the first `NAMED` of them as `file, row 3: reason`."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, location: str, reason: object) -> None:
        """Count a row; the first ones are kept to be named."""
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(f"{location}: {reason}")

    def refusal(self) -> str:
        """The sentence of the error with which a file is refused."""
        unnamed = self.count - len(self.first)
        text = "; ".join(self.first) + (f"; and {unnamed} more" if unnamed else "")
        rows = "1 bad row" if self.count == 1 else f"{self.count} bad rows"
        return f"{rows}: {text}. Repair them, or leave them out with --skip-bad-rows."
