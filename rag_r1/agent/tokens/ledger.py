"""The token ledger: the tokens of a trajectory, in the order in which the engine saw them, with their origin.

Generated ids are kept exactly as the engine returned them, and are never decoded and encoded again. An
observation is encoded once, on its own. The mask of a training row follows from who added a token, the policy
or the environment, and never from the text or the ids.

As long as the context only grows, there is one training row, and `context` is all of it. What the engine is
given is then a prefix of what the trainer gets, so the two cannot differ. `context` is not copied, so the
cost of an episode grows with its tokens, and not with tokens times turns. `rewrite` closes the row and opens
the next one, whose prompt is the rewritten context. Each generated token is trained on once, in the row in
which it was generated.

A row holds no more than the trainer and the engine can take: the ledger refuses tokens that would exceed
`Capacity`, and `room` is the number of tokens that still fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain


@dataclass(frozen=True)
class TrainingRow:
    """One row for the trainer. All lists of the response have the same length."""

    prompt_ids: list[int]
    response_ids: list[int]
    #: 1 for a generated token, 0 for an observed one.
    response_mask: list[int]
    #: In nats; 0 for an observed token. None if a generation has no log-probs.
    response_logprobs: list[float] | None


@dataclass(frozen=True)
class Capacity:
    """The limits of one row; None: no limit."""

    #: Most tokens of the response.
    response_tokens: int | None = None
    #: Most tokens of prompt and response together.
    context_tokens: int | None = None

    def room(self, prompt_tokens: int) -> int | None:
        """Return how many response tokens may follow a prompt; None: no limit."""
        context_room = None if self.context_tokens is None else self.context_tokens - prompt_tokens
        limits = (self.response_tokens, context_room)
        return min((limit for limit in limits if limit is not None), default=None)


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of one origin."""

    ids: tuple[int, ...]
    #: Whether the policy sampled them; otherwise the environment added them.
    generated: bool
    #: Index of the turn.
    turn: int
    #: Log-probs of generated tokens in nats, if the engine gave them.
    logprobs: tuple[float, ...] | None = None


@dataclass
class _Row:
    """A row that is being filled."""

    prompt_ids: list[int]
    spans: list[Span] = field(default_factory=list)

    def training_row(self) -> TrainingRow:
        """Return a copy of the row for the trainer."""
        ids = [*chain.from_iterable(span.ids for span in self.spans)]
        mask = [*chain.from_iterable([int(span.generated)] * len(span.ids) for span in self.spans)]
        logprobs = None
        if not any(span.generated and span.ids and span.logprobs is None for span in self.spans):
            values = (span.logprobs or [0.0] * len(span.ids) for span in self.spans)
            logprobs = [*chain.from_iterable(values)]
        return TrainingRow(list(self.prompt_ids), ids, mask, logprobs)


class Ledger:
    """The rows of a trajectory; spans are appended to the last row."""

    def __init__(self, prompt_ids: Sequence[int], capacity: Capacity | None = None):
        self.capacity = capacity or Capacity()
        self._rows = [_Row(list(prompt_ids))]
        self._context = list(prompt_ids)
        #: Number of tokens that the open row can still take; None: no limit.
        self.room = self.capacity.room(len(self._context))
        #: Numbers of tokens in the responses of all rows.
        self.generated_tokens = 0
        self.observed_tokens = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._rows == other._rows

    def append_generated(
        self, ids: Sequence[int], logprobs: Sequence[float] | None = None, turn: int = 0
    ) -> Span:
        """Append ids that the policy sampled, with their log-probs in nats if the engine gave them. Raises
        ValueError if they do not fit into the row, or if there is not one log-prob for each id."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} generated tokens but {len(logprobs)} log-probs")
        span = self._append(Span(tuple(ids), True, turn, None if logprobs is None else tuple(logprobs)))
        self.generated_tokens += len(ids)
        return span

    def append_observed(self, ids: Sequence[int], turn: int = 0) -> Span:
        """Append ids that the environment adds. Raises ValueError if they do not fit into the row."""
        span = self._append(Span(tuple(ids), False, turn))
        self.observed_tokens += len(ids)
        return span

    def rewrite(self, context_ids: Sequence[int]) -> None:
        """Close the row, and open the next one with `context_ids` as its prompt. Raises ValueError if no
        token could follow them."""
        room = self.capacity.room(len(context_ids))
        if room is not None and room < 1:
            raise ValueError(f"a context of {len(context_ids)} tokens leaves no room in {self.capacity}")
        self._rows.append(_Row(list(context_ids)))
        self._context = list(context_ids)
        self.room = room

    def context(self) -> list[int]:
        """Return the tokens that the engine continues: prompt and response of the open row.

        This is the ledger's own list, which grows with later appends: copy it to keep it.
        """
        return self._context

    @property
    def row_index(self) -> int:
        """Index of the open row."""
        return len(self._rows) - 1

    @property
    def first_prompt(self) -> list[int]:
        """The prompt of the first row; the ledger's own list."""
        return self._rows[0].prompt_ids

    def spans(self) -> Iterator[Span]:
        """Yield all spans of all rows, in order."""
        return (span for row in self._rows for span in row.spans)

    def turn_ends(self, turns: int) -> list[tuple[int, int] | None]:
        """Return where each of the first `turns` turns has its last generated token, as (index of the row in
        `rows`, position in its response); None for a turn without a generated token."""
        ends: list[tuple[int, int] | None] = [None] * turns
        for row_index, row in enumerate(self._trained_rows()):
            position = 0
            for span in row.spans:
                position += len(span.ids)
                if span.generated and span.ids and span.turn < turns:
                    ends[span.turn] = (row_index, position - 1)
        return ends

    def rows(self) -> list[TrainingRow]:
        """Return copies of the training rows with a generated token; if no row has one, a copy of the first
        row."""
        return [row.training_row() for row in self._trained_rows()]

    def _trained_rows(self) -> list[_Row]:
        """Return the rows with a generated token; if no row has one, the first row."""
        rows = [row for row in self._rows if any(span.generated and span.ids for span in row.spans)]
        return rows or self._rows[:1]

    def row(self) -> TrainingRow:
        """Return the only training row. Raises ValueError if there are several, since the context was
        rewritten."""
        if len(self._rows) > 1:
            raise ValueError(f"the context was rewritten: there are {len(self._rows)} rows, see `rows`")
        return self._rows[0].training_row()

    def _append(self, span: Span) -> Span:
        """Append a span to the open row and return it. Raises ValueError if it does not fit."""
        if self.room is not None:
            if len(span.ids) > self.room:
                raise ValueError(f"{len(span.ids)} tokens where the row can take {self.room}")
            self.room -= len(span.ids)
        self._rows[-1].spans.append(span)
        self._context.extend(span.ids)
        return span
