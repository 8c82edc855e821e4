"""Reads the questions whose answers are looked for, with the evidence that their data set names.

The files are veRL's parquet as data_process/ writes it, or a data set's own: JSON, JSON lines, CSV, TSV, or
parquet with `question` and its answers (data_process/row_files.py, data_process/questions.py). The evidence
of a question, if its data set has any, stands in the row or in the row's metadata:

    supporting_ids       ids of passages in the corpus that the data set was made from
    supporting_titles    titles of pages
    supporting_facts     HotpotQA's and 2WikiMultihopQA's: [title, sentence], or {"title": [...], ...}
    paragraphs           MuSiQue's: those with `is_supporting`
    s_wiki_title         PopQA's: the page of the subject

A row that joins several questions has them as `parts`, with the gold answers of each in `part_answers`: all
of them have to be found.

A question is known by its source (`data_source`, or the file's name) and its id in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_process.bad_rows import BadRows
from data_process.questions import parse_row
from data_process.row_files import ACCEPTED, DataError, open_rows
from rag_r1.rows import QuestionRow, as_golds, read_rows, row_fault

_EVIDENCE = ("supporting_ids", "supporting_titles", "supporting_facts", "paragraphs", "s_wiki_title")
_GOLDS = ("golden_answers", "answers", "answer")
_READ = ("question", *_GOLDS, "id", "_id", "idx", "metadata", *_EVIDENCE)


@dataclass(frozen=True)
class Question:
    """A question and the evidence that its data set names: ids of passages and titles of pages, all of which
    are needed. `parts`: (question, gold answers), one for each question that it joins, so mostly one; any of
    the gold answers is right."""

    source: str
    id: str
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    ids: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """By which it is known in all files."""
        return self.source, self.id


@dataclass
class Questions:
    """The questions of all files, in order, and the rows that cannot be used."""

    questions: list[Question] = field(default_factory=list)
    bad: BadRows = field(default_factory=BadRows)


def read_questions(paths: Sequence[Path]) -> Questions:
    """All questions. Raises DataError, with the remedy, if a file cannot be read or has no question."""
    read = Questions()
    first: dict[tuple[str, str], str] = {}
    for path in map(Path, paths):
        before = len(read.questions)
        for number, found in _rows(path):
            place = f"{path}, row {number}"
            if isinstance(found, Question) and found.key in first:
                found = ValueError(f"its id {found.id[:80]!r} is also that of {first[found.key]}")
            if isinstance(found, Question):
                first[found.key] = place
                read.questions.append(found)
            else:
                read.bad.add(place, found)
        if len(read.questions) == before:
            told = "; ".join(read.bad.first) or "it has no rows"
            raise DataError(f"no usable question in {path}: {told}. Accepted are {ACCEPTED}")
    return read


def _rows(path: Path) -> Iterator[tuple[int, Question | ValueError]]:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file. Give the questions with --data FILE")
    if _is_verls(path):
        for number, row in enumerate(read_rows(path), 1):
            yield number, _read(_of_verl, row, path, number)
        return
    with open_rows(path, _READ, (*_GOLDS, *_EVIDENCE)) as (columns, rows):
        if columns is not None and "question" not in columns:
            raise DataError(f"{path} has no column `question`. Rename the column of questions")
        for number, row in rows:
            yield number, row if isinstance(row, ValueError) else _read(_of_data_set, row, path, number)


def _is_verls(path: Path) -> bool:
    """Whether this is parquet with veRL's columns."""
    if not path.name.lower().endswith(".parquet"):
        return False
    import pyarrow
    import pyarrow.parquet as pq

    try:
        return {"extra_info", "reward_model"} <= set(pq.read_schema(path).names)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} is not a parquet file that can be read: {error}") from error


def _read(parse: Any, row: Any, path: Path, number: int) -> Question | ValueError:
    try:
        return parse(row, path, number)
    except ValueError as error:
        return error


def _of_verl(row: Mapping[str, Any], path: Path, number: int) -> Question:
    if fault := row_fault(row):
        raise ValueError(fault)
    read = QuestionRow.from_row(row)
    ids, titles = evidence_of(read.metadata)
    own_id = read.id or f"row-{number}"
    parts = _parts(read.metadata) or ((read.question, read.golds),)
    return Question(read.data_source or path.stem, own_id, parts, ids, titles)


def _of_data_set(row: Any, path: Path, number: int) -> Question:
    read = parse_row(row)
    ids, titles = evidence_of(row)
    source = path.name.partition(".")[0] or path.name
    return Question(source, read.id or f"row-{number}", ((read.question, read.golds),), ids, titles)


def _parts(metadata: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The questions that a row joins, if it has their answers."""
    questions, answers = metadata.get("parts"), metadata.get("part_answers")
    if not isinstance(questions, list) or not isinstance(answers, list) or len(questions) != len(answers):
        return ()
    parts = [
        (str(question), tuple(as_golds(golds))) for question, golds in zip(questions, answers, strict=True)
    ]
    return tuple(parts) if all(golds for _, golds in parts) else ()


def evidence_of(row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(ids of passages, titles of pages) that a row or its `metadata` names, each once. Raises ValueError if
    they are of another shape than that of their data set."""
    places = [row, _plain(row.get("metadata"))]
    ids: list[str] = []
    titles: list[str] = []
    for place in places:
        if not isinstance(place, Mapping):
            continue
        ids += _texts(place, "supporting_ids")
        titles += _texts(place, "supporting_titles")
        titles += _titles_of_facts(_plain(place.get("supporting_facts")))
        titles += _titles_of_paragraphs(_plain(place.get("paragraphs")))
        if isinstance(subject := place.get("s_wiki_title"), str) and subject.strip():
            titles.append(subject)
    for text in (*ids, *titles):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("the evidence holds half of a character (a lone surrogate), which is not text")
    return tuple(dict.fromkeys(ids)), tuple(dict.fromkeys(titles))


def _plain(value: Any) -> Any:
    """A value, or what it is as JSON: some tables have no nested columns."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _texts(place: Mapping[str, Any], name: str) -> list[str]:
    values = _plain(place.get(name))
    if values is None:
        return []
    usable = isinstance(values, list | tuple) and all(
        isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip()
        for value in values
    )
    if not usable:
        raise ValueError(f"`{name}` must be a list of texts")
    return [str(value) for value in values]


def _titles_of_facts(facts: Any) -> list[str]:
    if isinstance(facts, Mapping):  # as the Hub's copies have it: a list for each column
        facts = facts.get("title") or []
        facts = [[title] for title in facts] if isinstance(facts, list) else facts
    if not facts:
        return []
    usable = isinstance(facts, list) and all(
        isinstance(fact, list | tuple) and fact and isinstance(fact[0], str) and fact[0].strip()
        for fact in facts
    )
    if not usable:
        raise ValueError("`supporting_facts` must be a list of [title, sentence]")
    return [fact[0] for fact in facts]


def _titles_of_paragraphs(paragraphs: Any) -> list[str]:
    found = paragraphs if isinstance(paragraphs, list) else []
    return [
        paragraph["title"]
        for paragraph in found
        if isinstance(paragraph, Mapping)
        and paragraph.get("is_supporting") is True
        and isinstance(paragraph.get("title"), str)
        and paragraph["title"].strip()
    ]
