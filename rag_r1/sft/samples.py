"""Selects SFT samples from traces and published data, and records what is left out and why.

Traces go through four steps:

    1. Traces that are wrong or unusable are left out.
    2. Traces that answer without a search are reduced to a share of all traces, at random.
    3. The remaining traces are cut into samples (segment.py).
    4. Samples that quote a document, are too long or repeat an earlier sample are left out.

Published samples go through the last step only.

RAG-R1 trains on both kinds of traces, those that answer from the model's own knowledge and those that search,
but does not say in what ratio. A teacher answers many questions without a search, and a student that mostly
sees such traces learns to guess. By default, therefore, at most half of the traces are of this kind. If no
trace searches, none is left out for it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from rag_r1.agent.records import trajectory_of
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.duplicates import question_key
from rag_r1.data.rows import as_golds
from rag_r1.data.sft_rows import Piece, SftRow
from rag_r1.data.sft_tokens import SftTokens
from rag_r1.io.errors import DataError
from rag_r1.protocols import Document
from rag_r1.sft.llama_factory import sample_of
from rag_r1.sft.segment import (
    Layout,
    Metric,
    Trace,
    UnusableSampleError,
    check_right,
    check_targets,
    samples_of,
    trace_of,
)


@dataclass(frozen=True)
class SampleRules:
    """The rules by which samples are kept."""

    layout: Layout = "cut"
    #: The metric by which an answer must be right; None keeps wrong answers, too.
    metric: Metric | None = "em"
    #: Largest share of the traces that may answer without a search.
    thought_only: float = 0.5
    #: Maximum number of tokens before the last target.
    max_context: int = 8192
    #: Maximum number of tokens of a target.
    max_target: int = 2048
    seed: int = 0


@dataclass
class SampleSelection:
    """Collects the samples of one or several sources."""

    tokens: SftTokens
    rules: SampleRules
    #: The samples that are kept.
    rows: list[SftRow] = field(default_factory=list)
    #: An entry for each trace and each sample that was left out: `what` it is, its id, the reason (a key of
    #: REASONS) and a detail.
    dropped: list[dict[str, str]] = field(default_factory=list)
    #: Records and rows that are no traces or samples.
    bad: BadRows = field(default_factory=BadRows)
    #: How many traces and samples were read, and how many of the traces search.
    counts: Counter[str] = field(default_factory=Counter)
    #: How many traces and samples were left out, by reason.
    left_out: Counter[str] = field(default_factory=Counter)
    #: Question and pieces of each kept sample, by which repeated ones are recognised.
    _keys: set[tuple[str, tuple[Piece, ...]]] = field(default_factory=set)

    def add_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add the samples of trajectory records that have gold answers (`rag_r1.agent.records`)."""
        traces = []
        for record in records:
            self.counts["traces read"] += 1
            try:
                traces.append(self._trace(record))
            except DataError as error:
                self.bad.add("traces", error)
            except UnusableSampleError as error:
                self._drop("trace", str(record.get("id")), error)
        for trace in self._thin_out(traces):
            self.counts["traces that search" if trace.has_search else "traces that answer at once"] += 1
            for row in samples_of(trace, self.tokens.protocol, self.rules.layout):
                self._add(row, trace.documents)

    def add_published(self, samples: Iterable[tuple[int, Any]], name: str) -> None:
        """Add published samples, as `read_samples` yields them; `name` is the name of their file."""
        for number, sample in samples:
            self.counts["published samples read"] += 1
            try:
                row, documents = sample_of(sample, self.tokens.protocol, f"{name}/{number}")
            except DataError as error:
                self.bad.add(f"{name}, row {number}", error)
            except UnusableSampleError as error:
                self._drop("sample", f"{name}/{number}", error)
            else:
                self._add(row, documents)

    def _trace(self, record: Mapping[str, Any]) -> Trace:
        """Convert a record to a trace.

        Raises UnusableSampleError if it cannot be used, and DataError if the record is not a trajectory.
        """
        trajectory = trajectory_of(dict(record))
        if not isinstance(trajectory.question, str) or not isinstance(trajectory.id, str):
            raise DataError(f"the record {trajectory.id!r} has no question or no id")
        try:
            if self.rules.metric is not None:
                check_right(trajectory, as_golds(record.get("golds")), self.rules.metric)
            return trace_of(trajectory, self.tokens.protocol)
        except (TypeError, AttributeError) as error:
            raise DataError(f"the record {trajectory.id!r} is not a trajectory: {error}") from error

    def _thin_out(self, traces: Sequence[Trace]) -> list[Trace]:
        """Drop traces that answer without a search, at random, until their share is at most `thought_only`;
        returns the remaining traces in order. If no trace searches, none is dropped."""
        share = Fraction(str(self.rules.thought_only))  # in floats, 2 * 0.6 / 0.4 is less than 3
        direct = [index for index, trace in enumerate(traces) if not trace.has_search]
        n_searching = len(traces) - len(direct)
        limit = len(direct) if share >= 1 or not n_searching else int(n_searching * share / (1 - share))
        rng = random.Random(f"thought-only-{self.rules.seed}")
        dropped = set(direct) - set(rng.sample(direct, min(limit, len(direct))))
        for index in sorted(dropped):
            self._drop("trace", traces[index].id, UnusableSampleError("thought_only"))
        return [trace for index, trace in enumerate(traces) if index not in dropped]

    def _add(self, row: SftRow, documents: Sequence[Document]) -> None:
        """Add a sample, unless it repeats an earlier one, quotes a document or is too long."""
        key = (row.question, row.pieces)
        try:
            if key in self._keys:
                raise UnusableSampleError("repeated")
            check_targets(row, documents)
            row = self._with_token_counts(row)
        except UnusableSampleError as error:
            self._drop("sample", row.id, error)
            return
        self._keys.add(key)
        self.rows.append(row)

    def _with_token_counts(self, row: SftRow) -> SftRow:
        """Return the row with its numbers of tokens. Raises UnusableSampleError if a limit is exceeded."""
        try:
            encoded = self.tokens(row)
        except DataError as error:
            raise UnusableSampleError("control_text", str(error)) from error
        targets = [len(self.tokens.encode(target)) for target in row.targets]
        context = len(encoded.ids) - targets[-1]
        for name, tokens, limit in (
            ("target", max(targets), self.rules.max_target),
            ("context", context, self.rules.max_context),
        ):
            if tokens > limit:
                raise UnusableSampleError("too_long", f"a {name} of {tokens} tokens (at most {limit})")
        return replace(row, context_tokens=context, target_tokens=encoded.target_tokens)

    def _drop(self, kind: Literal["trace", "sample"], item_id: str, error: UnusableSampleError) -> None:
        """Record that a trace or a sample is left out, and why."""
        self.dropped.append({"what": kind, "id": item_id, "reason": error.reason, "detail": str(error)})
        self.left_out[f"{kind}s left out: {error.reason}"] += 1


def split_rows(rows: Sequence[SftRow], validation: float, seed: int) -> tuple[list[SftRow], list[SftRow]]:
    """Split rows into (training rows, validation rows), each in their original order.

    All samples of a question are in the same split, even if it is spelled differently
    (data/files/duplicates.py). `validation` is the share of the questions for validation. If it is above 0
    and there are at least two questions, validation gets at least one.
    """
    keys = [question_key(row.question) for row in rows]
    questions = list(dict.fromkeys(keys))
    count = 0
    if validation > 0 and len(questions) > 1:
        count = min(max(1, round(validation * len(questions))), len(questions) - 1)
    held_out = set(random.Random(f"validation-{seed}").sample(questions, count))
    return (
        [row for row, key in zip(rows, keys, strict=True) if key not in held_out],
        [row for row, key in zip(rows, keys, strict=True) if key in held_out],
    )
