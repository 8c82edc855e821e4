"""Counts the rows of a corpus that cannot be used, and names the first of them.

A corpus is read to its end before it is refused, so that one run counts all bad rows. With `--skip-bad-rows`,
which commands that build an index have, they are counted and named in the same way, but the other rows are
used. An import has no such flag, since its vectors belong to all rows. The rule is the same as in
rag_r1/data/files/bad_rows.py; it is copied because this package must not import rag_r1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: The number of bad rows that are named; all of them are counted.
NAMED = 5


@dataclass
class BadRows:
    """The number of rows that cannot be used, and descriptions of the first ones."""

    count: int = 0
    #: The first `NAMED` rows, each as `file, line 3: reason`.
    first: list[str] = field(default_factory=list)

    def add(self, location: str, reason: object) -> None:
        """Count a row, and keep its description if it is one of the first."""
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(f"{location}: {reason}")

    def refusal(self) -> str:
        """Return the error message with which the corpus is refused."""
        unnamed = self.count - len(self.first)
        text = "; ".join(self.first) + (f"; and {unnamed} more" if unnamed else "")
        rows = "1 bad row" if self.count == 1 else f"{self.count} bad rows"
        return f"{rows}: {text}. Repair them; `rag-r1 index build --skip-bad-rows` leaves them out."
