"""The requests of a run: its questions, read from files, and one request for each episode.

A file is either the parquet of a data set (rag_r1/data/rows.py), or questions and answers as JSON, JSON
lines, CSV, TSV or parquet, which are converted to the same rows with the prompt of the run's protocol. A data
set's row keeps its prompt, unless it was made for another protocol or the user gives a prompt; the prompt of
the run's protocol is used then. Ids must be unique across all files. Rows that cannot be used are handled by
the project's rule for bad rows (rag_r1/data/files/bad_rows.py).

All random numbers of a question come from `seeded_fraction`, a hash of the seed, the purpose and the
question's id. So they do not depend on the order of the rows, on other random numbers, or on interruptions of
the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.agent import ReplayTurn
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.duplicates import RepeatedRow, drop_duplicates
from rag_r1.data.files.qa_parquet import make_rows
from rag_r1.data.files.question_file import QuestionFile, read_file
from rag_r1.data.files.row_files import refuse_repeated
from rag_r1.data.rows import COLUMNS_READ, QuestionRow, read_rows, row_fault
from rag_r1.io.errors import DataError
from rag_r1.protocols import Protocol
from rag_r1.runs.errors import RunError
from rag_r1.sandbox.parquet import check_parquet


@dataclass(frozen=True)
class EpisodeRequest:
    """One episode to be played."""

    question_id: str
    question: str
    #: The accepted answers.
    golds: tuple[str, ...]
    #: The messages of the prompt; None for those of the protocol.
    messages: tuple[dict[str, Any], ...] | None = None
    data_source: str = ""
    #: The number of the episode among those of its question, from 0.
    sample: int = 0
    #: The seed and the temperature of the engine.
    seed: int = 0
    temperature: float = 1.0
    #: The agent that plays the episode; None for the run's agent.
    setup: AgentSetup | None = field(default=None, compare=False, repr=False)
    #: Whether to search for the question first and put the passages into the prompt (one_shot.py).
    search_first: bool = False
    #: Turns that are replayed at the beginning of the episode (agent/replay.py).
    past: tuple[ReplayTurn, ...] = field(default=(), compare=False, repr=False)
    #: The metadata of the question's row, which are copied to the record.
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def id(self) -> str:
        """The id of the episode, which is unique within a run."""
        return f"{self.question_id}#{self.sample}"


@dataclass
class QuestionSet:
    """The questions of a run, and the rows that were left out."""

    #: The questions in the order of the files.
    rows: list[QuestionRow] = field(default_factory=list)
    #: Rows that cannot be used.
    bad: BadRows = field(default_factory=BadRows)
    #: Rows that repeat an earlier question.
    repeats: list[RepeatedRow] = field(default_factory=list)


def read_questions(
    paths: Sequence[str | Path],
    protocol: Protocol,
    *,
    skip_bad_rows: bool | None = False,
    limit: int | None = None,
) -> QuestionSet:
    """Return the questions of all files, or the first `limit` of them. All files are read to their end even
    so, since a bad row is refused wherever it stands. `skip_bad_rows` is None for a command without the flag.

    Raises DataError if a file cannot be read or is given twice, if there is no question, or if a row cannot
    be used and `skip_bad_rows` is false; the message then names the first bad rows."""
    if not paths:
        raise DataError("--questions names no file: give a file of questions")
    refuse_repeated(paths)
    result = QuestionSet()
    locations: dict[str, str] = {}
    for path in map(Path, paths):
        for location, row in _file_rows(path, protocol, result):
            if row.id in locations:
                result.bad.add(location, f"the id {row.id!r} is also that of {locations[row.id]}")
                continue
            locations[row.id] = location
            result.rows.append(row)
    if result.bad.count and not skip_bad_rows:
        raise DataError(result.bad.refusal(has_flag=skip_bad_rows is not None))
    if not result.rows:
        raise DataError(f"no question in {', '.join(map(str, paths))}: give a file that has some")
    if limit is not None:
        del result.rows[limit:]
    return result


def _file_rows(path: Path, protocol: Protocol, result: QuestionSet) -> Iterable[tuple[str, QuestionRow]]:
    """Yield the usable rows of a file, each with its location for messages, and add the other rows to
    `result`. Raises DataError for a file that cannot be read."""
    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: {fault}; give a file of questions")
    if _is_data_set(path):
        for number, raw in enumerate(read_rows(path), 1):
            location = f"{path}, row {number}"
            row = QuestionRow.from_row(raw)
            fault = row_fault(raw) or (None if row.id else "extra_info.id is empty")
            if fault:
                result.bad.add(location, fault)
            else:
                yield location, row
        return
    source: QuestionFile = read_file(path)
    result.bad += source.bad
    questions, repeats = drop_duplicates(source.questions)
    result.repeats += [repeat for repeat in repeats if repeat.is_removed]
    name = path.name.partition(".")[0]
    for question, row in zip(questions, make_rows(questions, protocol, name, "train"), strict=True):
        yield f"{path}, row {question.row}", row


def _is_data_set(path: Path) -> bool:
    """Return whether a file is parquet with a data set's columns. Raises DataError for a file that is named
    `.parquet` but is not parquet."""
    if path.suffix.lower() != ".parquet":
        return False
    import pyarrow
    import pyarrow.parquet as pq

    try:
        check_parquet(path, COLUMNS_READ)
        names = set(pq.read_schema(path).names)
    except (pyarrow.ArrowInvalid, OSError) as error:
        reason = str(error).rstrip(".")
        raise DataError(f"{path} is not a parquet file: {reason}: give another, or make it again") from error
    return {"extra_info", "reward_model"} <= names


def make_request(
    row: QuestionRow,
    protocol: Protocol,
    *,
    sample: int = 0,
    seed: int = 0,
    temperature: float = 1.0,
    own_prompt: bool = False,
    **fields: Any,
) -> EpisodeRequest:
    """Return the request for episode number `sample` of a row. `seed` is the seed of the run. With
    `own_prompt` the protocol's prompt is used even if the row has one. `fields` are further fields of
    EpisodeRequest."""
    has_prompt = row.prompt and row.protocol == protocol.name and not own_prompt
    return EpisodeRequest(
        question_id=row.id,
        question=row.question,
        golds=row.golds,
        messages=row.prompt if has_prompt else None,
        data_source=row.data_source,
        sample=sample,
        seed=int(seeded_fraction(seed, "sampling", f"{row.id}#{sample}") * (1 << 31)),
        temperature=temperature,
        **fields,
    )


def check_prompt_limit(rows: Iterable[QuestionRow], setup: AgentSetup) -> None:
    """Raise RunError if no question's prompt is within the limits of the agent."""
    requests = (make_request(row, setup.protocol, own_prompt=setup.own_prompt) for row in rows)
    if not any(setup.prompt_fits(request.question, request.messages) for request in requests):
        raise RunError(
            "the prompt of every question is too long: raise --max-prompt-tokens, and --max-context-tokens "
            "if it is given"
        )


def seeded_fraction(seed: int, purpose: str, key: str) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on the three arguments."""
    text = json.dumps([seed, purpose, key])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / (1 << 48)


def questions_hash(rows: Iterable[QuestionRow]) -> str:
    """Return a hash of the rows' ids, questions, golds and prompts that does not depend on their order."""
    keys = sorted(json.dumps([row.id, row.question, row.golds, row.prompt]) for row in rows)
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()
