"""The token ledger: one trajectory's tokens as spans, in the order the engine saw them, each with its origin.

Token in, token out. Generated ids are kept exactly as the engine returned them; nothing is decoded and
encoded again. An observation is encoded once, on its own. The mask of a training row comes from who put a
token in (the policy or the environment), never from looking at text or at ids.

While the context only grows there is one row, and `context` is all of it: what the engine is given is a
prefix of what the trainer gets, so the two cannot differ. As `context` is no copy, the cost of an episode
grows with its tokens and not with tokens times turns. `rewrite` closes the row and opens the next, whose
prompt is the rewritten context: these tokens have been trained on where they were generated, and are not
again.

A row holds what its trainer and its engine can: the ledger refuses what would exceed `Capacity`, and `room`
tells what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TrainingRow:
    """What the trainer gets. The response lists have equal length; log-probs of observed tokens are 0."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None


@dataclass(frozen=True)
class Capacity:
    """Tokens that one row holds: of its response, and of prompt and response together; None: no limit."""

    response_tokens: int | None = None
    context_tokens: int | None = None

    def room(self, prompt_tokens: int) -> int | None:
        """Response tokens that may follow a prompt; None: no limit."""
        rest = None if self.context_tokens is None else self.context_tokens - prompt_tokens
        return min((limit for limit in (self.response_tokens, rest) if limit is not None), default=None)


class RowFull(ValueError):
    """Tokens that the row cannot hold."""


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
    prompt_ids: list[int]
    spans: list[Span] = field(default_factory=list)

    def training_row(self) -> TrainingRow:
        ids: list[int] = []
        mask: list[int] = []
        logprobs: list[float] | None = []
        for span in self.spans:
            ids += span.ids
            mask += [int(span.generated)] * len(span.ids)
            if not span.generated:
                values: Sequence[float] | None = [0.0] * len(span.ids)
            else:
                values = span.logprobs if span.ids else ()
            if logprobs is None or values is None:
                logprobs = None
            else:
                logprobs += values
        return TrainingRow(list(self.prompt_ids), ids, mask, logprobs)


class Ledger:
    """Appends only. A row has no log-probs if one of its generations came without."""

    def __init__(self, prompt_ids: Sequence[int], capacity: Capacity | None = None):
        self.capacity = capacity or Capacity()
        self._rows = [_Row(list(prompt_ids))]
        self._context = list(prompt_ids)
        self._room = self.capacity.room(len(self._context))
        #: Tokens of all rows' responses, by origin.
        self.generated_tokens = 0
        self.observed_tokens = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._rows == other._rows

    def generated(self, ids: Sequence[int], logprobs: Sequence[float] | None = None, turn: int = 0) -> None:
        """Take ids sampled by the policy, with their log-probs (nats) when the engine gave them. Raises
        RowFull, and ValueError if the log-probs are not as many."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} generated tokens but {len(logprobs)} log-probs")
        values = None if logprobs is None else tuple(logprobs)
        self._append(Span(tuple(ids), True, turn, values))
        self.generated_tokens += len(ids)

    def observed(self, ids: Sequence[int], turn: int = 0) -> None:
        """Take ids put in by the environment. Raises RowFull."""
        self._append(Span(tuple(ids), False, turn))
        self.observed_tokens += len(ids)

    def rewrite(self, context_ids: Sequence[int]) -> None:
        """Close the row; the next one's prompt is `context_ids`. Raises RowFull if no token could follow."""
        room = self.capacity.room(len(context_ids))
        if room is not None and room < 1:
            raise RowFull(f"a context of {len(context_ids)} tokens leaves no room in {self.capacity}")
        self._rows.append(_Row(list(context_ids)))
        self._context = list(context_ids)
        self._room = room

    def context(self) -> list[int]:
        """What the engine continues from: prompt and response of the open row.

        It is the ledger's own list. Read it while the engine is asked; make a copy to keep it longer.
        """
        return self._context

    @property
    def room(self) -> int | None:
        """Tokens that the open row can still take; None: no limit."""
        return self._room

    @property
    def row_number(self) -> int:
        """Of the open row, from 0."""
        return len(self._rows) - 1

    @property
    def first_prompt(self) -> list[int]:
        """The prompt with which the episode began; the ledger's own list."""
        return self._rows[0].prompt_ids

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt of the open row; the ledger's own list."""
        return self._rows[-1].prompt_ids

    def spans(self) -> Iterator[Span]:
        """All spans of all rows, in order."""
        return (span for row in self._rows for span in row.spans)

    def rows(self) -> list[TrainingRow]:
        """The training rows, as copies; only those with a generated token, if there is one with."""
        rows = [row for row in self._rows if any(span.generated and span.ids for span in row.spans)]
        return [row.training_row() for row in rows or self._rows[:1]]

    def row(self) -> TrainingRow:
        """The training row, where the context was never rewritten. Raises ValueError if it was."""
        if len(self._rows) > 1:
            raise ValueError(f"the context was rewritten: there are {len(self._rows)} rows, see `rows`")
        return self._rows[0].training_row()

    def _append(self, span: Span) -> None:
        if self._room is not None:
            if len(span.ids) > self._room:
                raise RowFull(f"{len(span.ids)} tokens where the row can take {self._room}")
            self._room -= len(span.ids)
        self._rows[-1].spans.append(span)
        self._context.extend(span.ids)
