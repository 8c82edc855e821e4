"""Counts the rows of a source that cannot be used (as in retrieval_server/folder/bad_rows.py).

Bad rows are counted, and the first five are named with their place and the reason. By default nothing is then
written, and the script ends with a status other than 0; with `--skip-bad-rows` these rows are left out, also
counted and named, and the others are used. A whole file is read before it is refused, so one run shows every
fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_r1.io.errors import DataError

#: Bad rows that are named; the others are only counted.
NAMED = 5
HELP = "leave out and count rows that cannot be used (default: such a row is an error)"


@dataclass
class BadRows:
    """The number of rows that cannot be used, and the first `NAMED` of them as `file, row 3: reason`."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, location: str, reason: object) -> None:
        """Count a row, and keep its place and reason if it is one of the first `NAMED`."""
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(f"{location}: {reason}")

    def __add__(self, other: BadRows) -> BadRows:
        return BadRows(self.count + other.count, (self.first + other.first)[:NAMED])

    def named(self) -> str:
        """The first `NAMED` rows, and how many more there are."""
        unnamed = self.count - len(self.first)
        return "; ".join(self.first) + (f"; and {unnamed} more" if unnamed else "")

    def refusal(self) -> str:
        """The error message for files with these rows."""
        return f"{self._count_text()}: {self.named()}. Repair them, or leave them out with --skip-bad-rows."

    def refuse(self, skip_bad_rows: bool, consequence: str) -> None:
        """Raises DataError, which begins with `consequence`, for bad rows that are not to be left out."""
        if self.count and not skip_bad_rows:
            raise DataError(f"{consequence}, because of {self.refusal()}")

    def left_out(self) -> list[str]:
        """The lines that report these rows as left out: how many, one for each that is named, one for the
        others. Empty without bad rows."""
        if not self.count:
            return []
        unnamed = self.count - len(self.first)
        last_line = [f"  and {unnamed} more"] if unnamed else []
        return [f"left out: {self._count_text()}", *(f"  {row}" for row in self.first), *last_line]

    def _count_text(self) -> str:
        return "1 bad row" if self.count == 1 else f"{self.count} bad rows"
