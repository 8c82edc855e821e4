"""Reads files that annotate questions: which ones are answerable, and which passages each one needs.

There are two kinds of files:

    answerable   the ids of questions, as a JSON object with a list for each data source, as a JSON list, as
                 one id per line, or as JSON rows with `id` and, optionally, `answerable` (true or false)
    supporting   JSON rows with `id`, and `supporting_ids` (of the corpus) or `supporting_titles`

JSON rows are either one list or one row per line. Ids are those of the data set's rows
(`hotpotqa/test/5ae0`). Their last part, the short id (`5ae0`), is enough if only one question of the run has
it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.rows import QuestionRow
from rag_r1.io.bounded_json import json_file_bytes, read_json_line
from rag_r1.io.errors import DataError, reason_of

Value = TypeVar("Value")
#: Most bytes of a file; a million questions with ten passages each need less.
_MAX_BYTES = 256 << 20
#: Most JSON values of a file.
_MAX_VALUES = 10_000_000


class Annotations(Generic[Value]):
    """The values that an annotation file has for the questions of a run. Look up all questions with `get`,
    and call `check` afterwards."""

    def __init__(self, path: Path, values: Mapping[tuple[str | None, str], Value]):
        """`values` maps (data source, id) to the value; the source is None if the file does not name it."""
        #: The file of the values.
        self.path = path
        self._values = values
        self._has_match = False
        #: Maps each key with a short id to the first question for which it was looked up, as `SOURCE: ID`.
        self._first_questions: dict[tuple[str | None, str], str] = {}
        #: The part of the error message about a short id that two questions have.
        self._ambiguous: str | None = None

    def get(self, source: str, question_id: str) -> Value | None:
        """Return the value of a question, by its full id or its short id; None if there is none."""
        short_id = question_id.rpartition("/")[2]
        keys = ((source, question_id), (None, question_id), (source, short_id), (None, short_id))
        key = next((key for key in keys if key in self._values), None)
        if key is None:
            return None
        self._has_match = True
        question = f"{source}: {question_id}"
        if key[1] == short_id and (first := self._first_questions.setdefault(key, question)) != question:
            self._ambiguous = self._ambiguous or f"{short_id!r} is {first!r} and {question!r}"
        return self._values[key]

    def check_rows(self, rows: Sequence[QuestionRow]) -> None:
        """Look up all of these questions, and call `check`."""
        for row in rows:
            self.get(row.data_source, row.id)
        self.check()

    def check(self) -> None:
        """Raise DataError if the file names none of the questions that were looked up, or if one of its ids
        could mean two of them."""
        if not self._has_match:
            raise DataError(
                f"{self.path} names none of the run's questions: give the file that was made for this data"
            )
        if self._ambiguous:
            raise DataError(
                f"{self.path}: two questions of the run have the same short id ({self._ambiguous}): give the "
                "whole ids of the data set's rows, in lists by data source if these are equal, too"
            )


def read_answerable(path: Path, bad: BadRows) -> Annotations[bool]:
    """Read which questions the corpus can answer. A question that the file does not name has no value; the
    last row counts for one that it names several times.

    Rows that cannot be used are added to `bad`. Raises DataError if the file cannot be read.
    """
    values: dict[tuple[str | None, str], bool] = {}
    for number, source, row in _rows(path, bad):
        row_id = row.get("id") if isinstance(row, Mapping) else row
        is_answerable = row.get("answerable", True) if isinstance(row, Mapping) else True
        if not _is_id(row_id) or not isinstance(is_answerable, bool):
            bad.add(f"{path}, row {number}", "needs an `id`, and `answerable` must be true or false")
            continue
        values[source, str(row_id)] = is_answerable
    return Annotations(path, values)


def read_supporting(path: Path, bad: BadRows) -> Annotations[GoldEvidence]:
    """Read which passages each question needs. Bad rows and errors are handled as in `read_answerable`."""
    values: dict[tuple[str | None, str], GoldEvidence] = {}
    for number, source, row in _rows(path, bad):
        evidence = GoldEvidence.of(row) if isinstance(row, Mapping) else None
        if not evidence or not _is_id(row.get("id")):
            bad.add(f"{path}, row {number}", "needs an `id` and `supporting_ids` or `supporting_titles`")
            continue
        values[source, str(row["id"])] = evidence
    return Annotations(path, values)


def with_supporting(rows: Sequence[QuestionRow], supporting: Annotations[GoldEvidence]) -> list[QuestionRow]:
    """Return the rows, in order, with the evidence that the file names; rows that it does not name are
    unchanged. Raises DataError as `Annotations.check` does."""
    supporting.check_rows(rows)
    return [_with_evidence(row, supporting.get(row.data_source, row.id)) for row in rows]


def _with_evidence(row: QuestionRow, evidence: GoldEvidence | None) -> QuestionRow:
    """Return the row with this evidence in place of its own, or unchanged if there is none."""
    if evidence is None:
        return row
    names = {"supporting_ids": sorted(evidence.ids), "supporting_titles": sorted(evidence.titles)}
    return replace(row, metadata={**row.metadata, **names})


def _rows(path: Path, bad: BadRows) -> Iterator[tuple[int, str | None, Any]]:
    """Yield (number from 1, data source or None if the file does not name it, row), and add lines that are
    not JSON to `bad`. The numbers count lines, or the rows of all lists together. Raises DataError if the
    file cannot be read."""
    try:
        text = json_file_bytes(path, _MAX_BYTES, _MAX_VALUES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = reason_of(error)
        raise DataError(f"cannot read {path}: {why}; correct the path, or make it again") from error
    if (lists := _lists_by_source(text)) is not None:
        pairs = ((source, row) for source, rows in lists.items() for row in rows)
        for number, (source, row) in enumerate(pairs, 1):
            yield number, source, row
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, None, _row_of(line)
            except (ValueError, RecursionError) as error:
                bad.add(f"{path}, row {number}", f"not JSON ({error})")


def _lists_by_source(text: str) -> dict[str | None, list[Any]] | None:
    """Return the rows of a text that is a single JSON list (under None) or an object of lists by data source;
    None for any other text."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(content, list):
        return {None: content}
    is_by_source = isinstance(content, dict) and all(isinstance(rows, list) for rows in content.values())
    return content if is_by_source and content else None


def _row_of(line: str) -> Any:
    """Return the row in a line, which is JSON or just an id. Raises ValueError or RecursionError for broken
    JSON."""
    return read_json_line(line) if line.lstrip()[0] in '{["' else line.strip()


def _is_id(value: Any) -> bool:
    """Return whether this is a text that is not blank, or a whole number."""
    return isinstance(value, str | int) and not isinstance(value, bool) and bool(str(value).strip())
