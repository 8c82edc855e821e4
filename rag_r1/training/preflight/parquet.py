"""Checks the rows of a parquet file.

`column_problems` reads only the schema. `scan_parquet` checks each row once, counts and names the faulty
rows, and keeps the longest prompts. rag_r1/data/rows.py reads rows in batches, so a file may be of any size.
Counting tokens is slow, so only the prompts with the most characters are tokenised, at most `TOKENISED` of a
file. That is all of a small file, and those prompts of a large one that may be too long.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from rag_r1.data.rows import (
    AGENT_NAME,
    COLUMNS_READ,
    REQUIRED_COLUMNS,
    QuestionRow,
    read_rows,
    row_fault,
    usable_prompt,
)
from rag_r1.io.errors import DataError
from rag_r1.options.problems import Problem, error, error_of, warning
from rag_r1.sandbox.parquet import check_parquet

#: The largest number of prompts of a file that are tokenised.
TOKENISED = 4000
#: The largest number of faulty rows of each kind that are named.
NAMED = 3

#: The roles of messages that chat templates know.
_ROLES = {"system", "user", "assistant", "tool"}
_REMEDY = "make the file with `rag-r1 data`"


@dataclass
class RowFaults:
    """The rows with one kind of fault."""

    count: int = 0
    #: Descriptions of the first of these rows; row numbers count from 1.
    descriptions: list[str] = field(default_factory=list)

    def add(self, row: int, text: Any) -> None:
        """Count a row, and describe it if it is one of the first."""
        self.count += 1
        if len(self.descriptions) < NAMED:
            self.descriptions.append(f"row {row}: {text}")

    def __str__(self) -> str:
        return "; ".join(self.descriptions) + ("; ..." if self.count > NAMED else "")


@dataclass
class ParquetScan:
    """The results of checking the rows of one file."""

    rows: int = 0
    malformed: RowFaults = field(default_factory=RowFaults)
    promptless: RowFaults = field(default_factory=RowFaults)
    other_protocol: RowFaults = field(default_factory=RowFaults)
    #: Rows for an agent loop that does not exist, and rows with a message of an unusual role.
    other_agent: RowFaults = field(default_factory=RowFaults)
    other_role: RowFaults = field(default_factory=RowFaults)
    #: The number of prompts whose tokens were counted.
    tokenised: int = 0
    #: The number of these prompts that the chat template refused; their rows are among `malformed`.
    refused: int = 0
    overlong: RowFaults = field(default_factory=RowFaults)

    @property
    def usable(self) -> int:
        """The number of rows that can be trained on. As not all prompts of a large file are tokenised, it is
        an upper limit, except that it is 0 if the chat template refused every prompt that was."""
        if 0 < self.tokenised == self.refused:
            return 0
        return self.rows - self.malformed.count - self.promptless.count

    @property
    def bound(self) -> str:
        """What to write before a number of faulty prompts: "at least" if not all were tokenised, else ""."""
        prompts = self.rows - self.promptless.count - (self.malformed.count - self.refused)
        return "at least " if 0 < self.tokenised < prompts else ""


def missing_file(path: str) -> str:
    """Return why a path is not that of a file: it is a folder, or does not exist."""
    return "is a folder" if Path(path).expanduser().is_dir() else "there is no such file"


def column_problems(path: str) -> list[Problem]:
    """Return a Problem if a file does not exist or is not parquet, or else one for each missing column."""
    if not Path(path).is_file():
        return [error(path, missing_file(path), f"{_REMEDY}, or correct the path")]
    try:
        check_parquet(path, COLUMNS_READ)
    except DataError as fault:
        return [error_of(path, str(fault).removeprefix(f"{path}: "))]
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as fault:
        return [error(path, f"is not a readable parquet file ({fault})", _REMEDY)]
    missing = [column for column in REQUIRED_COLUMNS if not _has_column(schema, column)]
    return [error(path, f"has no column {column}", f"{_REMEDY}, or add the column") for column in missing]


def _has_column(schema: pa.Schema, column: str) -> bool:
    """Return whether a schema has a column, or for a name such as `a.b` the field of a struct."""
    names = column.split(".")
    if names[0] not in schema.names:
        return False
    kind = schema.field(names[0]).type
    for name in names[1:]:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return False
        kind = kind.field(name).type
    # A ground truth may be the answer itself, but if it is a struct, it must have the field `target`.
    return names[-1] != "ground_truth" or not pa.types.is_struct(kind) or kind.get_field_index("target") >= 0


def scan_parquet(
    path: str,
    protocol: str,
    messages: Callable[[QuestionRow], Sequence[Mapping[str, Any]]],
    count_tokens: Callable[[QuestionRow], int] | None,
    max_prompt_length: int | None,
    agents: Collection[str] | None = None,
) -> ParquetScan:
    """Check every row of a parquet file that has the required columns; returns what was found.

    `messages` returns the chat messages that the agent will send for a row. `count_tokens` returns the length
    of a row's prompt, or raises ValueError if the chat template refuses its messages; it is None without a
    tokenizer or a limit. `agents` are the names of all agent loops, if they are known. Raises DataError if
    rows cannot be read.
    """
    scan = ParquetScan()
    longest: list[tuple[int, int, QuestionRow]] = []
    file_name, rows = Path(path).name, pq.read_metadata(path).num_rows
    bar = tqdm(read_rows(path), total=rows, desc=f"{file_name}: rows", unit="row", leave=False)
    for number, row in enumerate(bar, 1):
        scan.rows += 1
        if agents is not None and (agent := row.get("agent_name", next(iter(agents), None))) not in agents:
            scan.other_agent.add(number, repr(agent))
        fault = row_fault(row)
        if not usable_prompt(row.get("prompt")):
            scan.promptless.add(number, "no messages with role and content")
        elif fault is not None:
            scan.malformed.add(number, fault)
        else:
            question = QuestionRow.from_row(row)
            if other_roles := {message["role"] for message in messages(question)} - _ROLES:
                scan.other_role.add(number, ", ".join(sorted(map(repr, other_roles))))
            if question.protocol != protocol:
                scan.other_protocol.add(number, repr(question.protocol or None))
            # The negative row number makes the heap keep the first of equally long prompts. As no two are
            # equal, rows are never compared.
            entry = (sum(len(message["content"]) for message in messages(question)), -number, question)
            push = heapq.heappush if len(longest) < TOKENISED else heapq.heappushpop
            push(longest, entry)
    if count_tokens is not None:
        prompts = sorted((-negative, question) for _, negative, question in longest)
        for number, question in tqdm(prompts, desc=f"{file_name}: tokens", unit="prompt", leave=False):
            scan.tokenised += 1
            try:
                if (length := count_tokens(question)) > max_prompt_length:
                    scan.overlong.add(number, f"{length} tokens")
            except ValueError as fault:
                scan.refused += 1
                scan.malformed.add(number, f"no prompt: {fault}")
    return scan


def scan_problems(
    path: str, scan: ParquetScan, protocol: str, max_prompt_length: int | None, is_filtered: bool
) -> Iterator[Problem]:
    """Yield the problems of a file's rows. `is_filtered` says whether veRL leaves out overlong prompts."""
    if count := scan.malformed.count:
        bound = scan.bound if scan.refused else ""
        text = f"{bound}{count} of {scan.rows} rows are malformed ({scan.malformed})"
        yield warning(path, text, "repair or remove them; they end no run, but train nothing")
    if count := scan.promptless.count:
        text = f"{count} of {scan.rows} rows have no usable `prompt` ({scan.promptless})"
        yield warning(path, text, "repair or remove them; they are left out of the run")
    if count := scan.other_protocol.count:
        rows = f"{count} rows ({scan.other_protocol})"
        text = f"{rows} were made for another protocol than the configured {protocol!r}"
        remedy = f"set rag_r1.protocol to theirs, or make the data with --protocol {protocol}"
        yield error(path, text, remedy)
    if count := scan.other_agent.count:
        text = f"{count} rows name an agent loop in `agent_name` that does not exist ({scan.other_agent})"
        yield error(path, text, f"set it to {AGENT_NAME}, or leave the column out")
    if count := scan.other_role.count:
        text = f"{count} rows have messages of a role that most models do not know ({scan.other_role})"
        yield warning(path, text, f"make the roles some of {', '.join(sorted(_ROLES))}")
    if count := scan.overlong.count:
        limit = f"data.max_prompt_length={max_prompt_length}"
        text = f"{scan.bound}{count} prompts ({scan.overlong}) are longer than {limit}"
        if is_filtered:
            yield warning(path, text, "data.filter_overlong_prompts leaves them out")
        else:
            remedy = "raise data.max_prompt_length, or leave them out with data.filter_overlong_prompts=true"
            yield error(path, text, remedy)
    if scan.usable <= 0:
        yield error(path, "no usable row is left", f"repair the rows, or {_REMEDY}")
    elif is_filtered and scan.overlong.count >= scan.rows - scan.promptless.count:
        yield error(path, "no row is left without the longer prompts", "raise data.max_prompt_length")
