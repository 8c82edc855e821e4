"""Defines, reads and writes the JSONL records of `rag-r1 retriever data`.

    candidates.jsonl    RoundsRecord        a trajectory: its searches, each with the retriever's candidates
    passages.jsonl      PassageRecord       the text of each candidate, as in a corpus
    sub_answers.jsonl   SubAnswersRecord    what each search of a trajectory should have found
    relevance.jsonl     RelevanceRecord     local relevance (LR) of a search's candidates, 0 to 100
    correctness.jsonl   CorrectnessRecord   global answer correctness (GAC) of a search's candidates, 0 to 1
    train.jsonl         TrainingRow         a positive passage, its negatives, and their scores

Passages are identified by their ids in the corpus. A round is identified by `id`, the id of the question, and
`round_index`, which counts the searches of its trajectory from 1. The keys are those of the published
pipeline (8421BCD/Agentic-R), whose records and training rows can therefore be read without conversion.
Unknown keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from rag_r1.data.files.row_files import refuse_utf16
from rag_r1.io.atomic_files import write_lines
from rag_r1.io.bounded_json import limited_lines
from rag_r1.io.errors import DataError, TooLargeError, reason_of
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.protocols.actions import well_formed
from rag_r1.runs.errors import RunError

CANDIDATES, PASSAGES, SUB_ANSWERS = "candidates.jsonl", "passages.jsonl", "sub_answers.jsonl"
RELEVANCE, CORRECTNESS, TRAIN = "relevance.jsonl", "correctness.jsonl", "train.jsonl"

#: Id of a question or a passage. Whole numbers, which some corpora use as ids, become text.
Id = Annotated[str, Field(min_length=1), BeforeValidator(lambda v: str(v) if type(v) is int else v)]
#: A share, from 0 to 1.
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
#: Number of a search within its trajectory.
RoundNumber = Annotated[int, Field(ge=1)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class CandidatesRound(_Record):
    """A search of a trajectory, with its candidates. The published records lack the fields with a default."""

    round_index: RoundNumber
    #: The policy's text and its observations, up to the end of the turn with the search.
    reasoning_context: str
    #: The query as the policy wrote it.
    current_query: str
    #: The candidates, best first.
    candidate_passage_ids: tuple[Id, ...]
    #: The text that the retriever was sent for the query.
    sent_query: str | None = None
    #: The queries of earlier turns.
    history_queries: tuple[str, ...] = ()
    #: Number of the turn, from 0; several searches may share a turn.
    turn: int | None = None
    #: The thought before the query; empty if the policy wrote none.
    reasoning: str | None = None


class RoundsRecord(_Record):
    """A trajectory and its rounds."""

    id: Id
    question: str
    golden_answers: tuple[str, ...]
    trajectory: tuple[CandidatesRound, ...]
    dataset: str = ""


class PassageRecord(_Record):
    """A passage, as in a corpus."""

    id: Id
    contents: str


class SubAnswersRecord(_Record):
    """A short answer for each search of a trajectory; `relevance.NOT_SURE` where the judge knew none."""

    id: Id
    sub_answers: tuple[str, ...]


class RelevanceRecord(_Record):
    """The local relevance (LR) of the candidates of a round."""

    id: Id
    round_index: RoundNumber
    #: LR from 0 to 100 by passage id.
    docid_score: dict[Id, Annotated[int, Field(ge=0, le=100)]]


class ContinuationMetrics(_Record):
    """The metrics of the continuations of one candidate."""

    #: Share of the continuations that ended with a right answer.
    em: Share


class Continuation(_Record):
    """The results of the continuations of one candidate, in which the round's search returned it alone."""

    metric_score: ContinuationMetrics
    #: Mean number of searches after the round's own.
    retrieved_times: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0


class CorrectnessRecord(_Record):
    """The global answer correctness (GAC) of the candidates of a round, by passage id."""

    id: Id
    question: str
    round_index: RoundNumber
    history_queries: tuple[str, ...]
    current_query: str
    docid_score: dict[Id, Continuation]
    dataset: str = ""


class PassageUtility(_Record):
    """The scores of a passage of a training row. A score that was not measured is 0."""

    #: GAC, from 0 to 1.
    em: Share
    #: LR, scaled to 0 to 1.
    local_utility: Share


class TrainingRow(_Record):
    """A query with its positive passage and its negatives."""

    dataset: str
    #: Id of the question.
    query_id: Id
    question: str
    round_index: RoundNumber
    history_queries: tuple[str, ...]
    query_text: str
    #: The positive passage, then the negatives.
    passage_ids: Annotated[tuple[Id, ...], Field(min_length=2)]
    #: The scores of the passages, in the same order.
    scores: tuple[PassageUtility, ...]
    #: The thought before the query, for a retriever that reads it: empty if the policy wrote none, None if it
    #: is not known, as in the published rows.
    reasoning: str | None = None

    @model_validator(mode="after")
    def _is_aligned(self) -> TrainingRow:
        if len(self.scores) != len(self.passage_ids):
            raise ValueError(f"{len(self.passage_ids)} passage_ids but {len(self.scores)} scores")
        if len(set(self.passage_ids)) < len(self.passage_ids):
            raise ValueError("a passage is named twice in passage_ids")
        return self


Record = TypeVar("Record", bound=_Record)
#: The name of the file that has records of a class.
_FILES: dict[type[_Record], str] = {RoundsRecord: CANDIDATES, PassageRecord: PASSAGES, TrainingRow: TRAIN}
_FILES |= {SubAnswersRecord: SUB_ANSWERS, RelevanceRecord: RELEVANCE, CorrectnessRecord: CORRECTNESS}


def read_records(kind: type[Record], *paths: str | Path) -> Iterator[Record]:
    """Yield the records of files of this kind. Raises RunError for a file that cannot be read, and for the
    first line that is not such a record; the message then names the file and the line."""
    return (record for path in paths for record, _ in read_with_offsets(kind, Path(path)))


def check_records(kind: type[Record], path: Path) -> None:
    """Read a file to its end. Raises RunError as `read_records` does, and for a file without a record."""
    if not sum(1 for _ in read_records(kind, path)):
        raise RunError(f"{path} is empty: give a file each of whose lines is {_line_kind(kind)}")


def read_with_offsets(kind: type[Record], path: Path) -> Iterator[tuple[Record, int]]:
    """Yield each record of a file with its byte offset, at which `record_at` can read it again. Raises
    RunError as `read_records` does."""
    offset = 0
    try:
        with open_ordinary(path) as file:
            refuse_utf16(path, file, f"files each of whose lines is {_line_kind(kind)}")
            for number, line in enumerate(limited_lines(file), 1):
                if line.strip():
                    yield _parse(kind, line, f"{path}, line {number}"), offset
                offset += len(line)
    except DataError as error:
        raise RunError(str(error)) from error
    except (OSError, TooLargeError) as error:
        message = f"{path} cannot be read ({reason_of(error)})"
        raise RunError(f"{message}: give a file each of whose lines is {_line_kind(kind)}") from error


def record_at(kind: type[Record], path: Path, offset: int) -> Record:
    """Read the record that begins at a byte offset. Raises RunError if there is none because the file has
    changed, and OSError if the file was removed."""
    with path.open("rb") as file:
        file.seek(offset)
        return _parse(kind, file.readline(), f"{path}, byte {offset}")


def write_records(path: Path, records: Iterable[_Record]) -> int:
    """Write a file of records, completely or not at all, and return their number. Values that are not set or
    are None are left out, and a lone surrogate is written as `?`. Raises OSError with the name of the
    file."""
    values = (record.model_dump(mode="json", exclude_unset=True, exclude_none=True) for record in records)
    lines = (well_formed(json.dumps(value, ensure_ascii=False)) + "\n" for value in values)
    return write_lines(path, lines, private=True)


def _parse(kind: type[Record], line: bytes, location: str) -> Record:
    """Return the record in a line. Raises RunError, with `location`, if the line is not such a record."""
    try:
        return kind.model_validate_json(line.removeprefix(b"\xef\xbb\xbf"))  # a byte order mark in UTF-8
    except ValidationError as error:
        problem = first_problem(error)
        raise RunError(f"{location} is not {_line_kind(kind)} ({problem}): correct or remove it") from error


def first_problem(error: ValidationError) -> str:
    """Return the first problem that pydantic found, as `KEY: PROBLEM`."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    key = ".".join(map(str, problem["loc"][:2]))
    return f"{key}: {problem['msg']}" if key else problem["msg"]


def _line_kind(kind: type[_Record]) -> str:
    """Return the words by which messages refer to a line with such a record."""
    return f"a line of {_FILES[kind]}, as `rag-r1 retriever data` writes it"
