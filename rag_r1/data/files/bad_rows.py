"""Counts the rows of a source that cannot be used, and reports or refuses them.

All bad rows are counted, and the first five are named with their location and the reason. By default nothing
is then written, and the command fails; with `--skip-bad-rows` the bad rows are left out, which is reported in
the same way, and the other rows are used. A file is read to its end before it is refused, so one run counts
all of them. (retrieval_server/folder/bad_rows.py does the same for the retrieval server, which shares no code
with this package.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_r1.io.errors import DataError

#: Number of bad rows that are named; the others are only counted.
NAMED = 5
#: The help text of --skip-bad-rows.
HELP = "leave out and count rows that cannot be used (default: such a row is an error)"


@dataclass
class BadRows:
    """The rows that cannot be used."""

    count: int = 0
    #: The first `NAMED` of them, as `file, row 3: reason`.
    first: list[str] = field(default_factory=list)

    def add(self, location: str, reason: object) -> None:
        """Count a row, and keep its location and the reason if it is one of the first `NAMED`."""
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(f"{location}: {reason}")

    def __add__(self, other: BadRows) -> BadRows:
        """Return the rows of both, those of `self` first."""
        return BadRows(self.count + other.count, (self.first + other.first)[:NAMED])

    def named(self) -> str:
        """Return the first `NAMED` rows and the number of further ones, as text."""
        unnamed = self.count - len(self.first)
        return "; ".join(self.first) + (f"; and {unnamed} more" if unnamed else "")

    def refusal(self, *, has_flag: bool = True) -> str:
        """Return the error message for files with these rows. It names --skip-bad-rows unless `has_flag` says
        that the command has no such flag."""
        remedy = ", or leave them out with --skip-bad-rows" if has_flag else ""
        return f"{self._count_text()}: {self.named()}. Repair them{remedy}."

    def refuse(self, skip_bad_rows: bool, consequence: str) -> None:
        """Raise DataError if there are bad rows, unless `skip_bad_rows` says to leave them out. The message
        begins with `consequence`, such as "no report was written"."""
        if self.count and not skip_bad_rows:
            raise DataError(f"{consequence}, because of {self.refusal()}")

    def left_out(self) -> list[str]:
        """Return lines of text which report that these rows were left out: the number, then each named row,
        then the number of the others. There are no lines if there are no bad rows."""
        unnamed = self.count - len(self.first)
        lines = [*self.first, f"and {unnamed} more"] if unnamed else self.first
        return [f"left out: {self._count_text()}", *(f"  {line}" for line in lines)] if self.count else []

    def _count_text(self) -> str:
        return "1 bad row" if self.count == 1 else f"{self.count} bad rows"
