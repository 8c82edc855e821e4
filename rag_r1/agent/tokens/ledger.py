"""The token ledger: a trajectory's tokens as spans with provenance, in the order the engine saw them.

Token in, token out. Generated ids are kept exactly as the engine returned them; nothing is decoded and
encoded again. An observation is encoded once, on its own. The mask of a training row comes from who put a
token in (the policy or the environment), never from looking at text or at ids.

While the context only grows there is one row, and `context` is all of it: what the engine is given is a
prefix of what the trainer gets, so the two cannot differ. `context` is not a copy, so the cost of an episode
grows with its tokens and not with tokens times turns. `rewrite` closes the row and opens the next, whose
prompt is the rewritten context: each generated token is trained on once, in the row in which it was
generated.

A row holds no more than the trainer and the engine can take: the ledger refuses what would exceed `Capacity`,
and `room` is what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain


@dataclass(frozen=True)
class TrainingRow:
    """One row for the trainer. The response lists have equal length. `response_mask`: 1 for a generated
    token, 0 for an observed one; `response_logprobs`: in nats, 0 for an observed token; None if a generation
    has none."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None


@dataclass(frozen=True)
class Capacity:
    """The most tokens of one row: of its response, and of prompt and response together; None: no limit."""

    response_tokens: int | None = None
    context_tokens: int | None = None

    def room(self, prompt_tokens: int) -> int | None:
        """Response tokens that may follow a prompt; None: no limit."""
        context_room = None if self.context_tokens is None else self.context_tokens - prompt_tokens
        limits = (self.response_tokens, context_room)
        return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True)
class Span:
    """Tokens with one origin. `generated`: sampled by the policy, with log-probs in nats if the engine gave
    them; otherwise observed. `turn` counts from 0."""

    ids: tuple[int, ...]
    generated: bool
    turn: int
    logprobs: tuple[float, ...] | None = None


@dataclass
class _Row:
    """A row that is being filled."""

    prompt_ids: list[int]
    spans: list[Span] = field(default_factory=list)

    def training_row(self) -> TrainingRow:
        """The row for the trainer, as a copy."""
        ids = [*chain.from_iterable(span.ids for span in self.spans)]
        mask = [*chain.from_iterable([int(span.generated)] * len(span.ids) for span in self.spans)]
        logprobs = None
        if not any(span.generated and span.ids and span.logprobs is None for span in self.spans):
            values = (span.logprobs or [0.0] * len(span.ids) for span in self.spans)
            logprobs = [*chain.from_iterable(values)]
        return TrainingRow(list(self.prompt_ids), ids, mask, logprobs)


class Ledger:
    """The rows of a trajectory, to which spans are appended. A row has no log-probs if one of its generations
    has none."""

    def __init__(self, prompt_ids: Sequence[int], capacity: Capacity | None = None):
        self.capacity = capacity or Capacity()
        self._rows = [_Row(list(prompt_ids))]
        self._context = list(prompt_ids)
        #: Tokens that the open row can still take; None: no limit.
        self.room = self.capacity.room(len(self._context))
        #: Tokens of all rows' responses, by origin.
        self.generated_tokens = 0
        self.observed_tokens = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._rows == other._rows

    def append_generated(
        self, ids: Sequence[int], logprobs: Sequence[float] | None = None, turn: int = 0
    ) -> Span:
        """Append ids sampled by the policy, with their log-probs (nats) if the engine gave them. Raises
        ValueError if they do not fit into the row, or if there are more or fewer log-probs than ids."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} generated tokens but {len(logprobs)} log-probs")
        span = self._append(Span(tuple(ids), True, turn, None if logprobs is None else tuple(logprobs)))
        self.generated_tokens += len(ids)
        return span

    def append_observed(self, ids: Sequence[int], turn: int = 0) -> Span:
        """Append ids inserted by the environment. Raises ValueError if they do not fit into the row."""
        span = self._append(Span(tuple(ids), False, turn))
        self.observed_tokens += len(ids)
        return span

    def rewrite(self, context_ids: Sequence[int]) -> None:
        """Close the row; the next one's prompt is `context_ids`. Raises ValueError if no token could
        follow."""
        room = self.capacity.room(len(context_ids))
        if room is not None and room < 1:
            raise ValueError(f"a context of {len(context_ids)} tokens leaves no room in {self.capacity}")
        self._rows.append(_Row(list(context_ids)))
        self._context = list(context_ids)
        self.room = room

    def context(self) -> list[int]:
        """Returns the tokens that the engine continues: prompt and response of the open row.

        This is the ledger's own list, which later appends extend: copy it to keep it.
        """
        return self._context

    @property
    def row_number(self) -> int:
        """Number of the open row, from 0."""
        return len(self._rows) - 1

    @property
    def first_prompt(self) -> list[int]:
        """The prompt of the first row; the ledger's own list."""
        return self._rows[0].prompt_ids

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt of the open row; the ledger's own list."""
        return self._rows[-1].prompt_ids

    def spans(self) -> Iterator[Span]:
        """Yields all spans of all rows, in order."""
        return (span for row in self._rows for span in row.spans)

    def turn_ends(self, turns: int) -> list[tuple[int, int] | None]:
        """Returns the place of the last generated token of each of `turns` turns: the number of its row in
        `rows` and its position in the response there; None for a turn without a generated token."""
        ends: list[tuple[int, int] | None] = [None] * turns
        for number, row in enumerate(self._trained_rows()):
            position = 0
            for span in row.spans:
                position += len(span.ids)
                if span.generated and span.ids and span.turn < turns:
                    ends[span.turn] = (number, position - 1)
        return ends

    def rows(self) -> list[TrainingRow]:
        """Returns the training rows with a generated token, as copies; if none has one, the first row."""
        return [row.training_row() for row in self._trained_rows()]

    def _trained_rows(self) -> list[_Row]:
        """The rows with a generated token; if none has one, the first row."""
        rows = [row for row in self._rows if any(span.generated and span.ids for span in row.spans)]
        return rows or self._rows[:1]

    def row(self) -> TrainingRow:
        """Returns the only training row. Raises ValueError if the context was rewritten: then there are
        several."""
        if len(self._rows) > 1:
            raise ValueError(f"the context was rewritten: there are {len(self._rows)} rows, see `rows`")
        return self._rows[0].training_row()

    def _append(self, span: Span) -> Span:
        """Append a span to the open row, and return it. Raises ValueError if it does not fit."""
        if self.room is not None:
            if len(span.ids) > self.room:
                raise ValueError(f"{len(span.ids)} tokens where the row can take {self.room}")
            self.room -= len(span.ids)
        self._rows[-1].spans.append(span)
        self._context.extend(span.ids)
        return span
