"""The token ledger: one trajectory's tokens, in the order the engine saw them, each with its provenance.

Token in, token out. Generated ids are kept exactly as the engine returned them; nothing is decoded and
encoded again. An observation is encoded once, on its own. The mask of the training row comes from who put a
token in (the policy or the environment), never from looking at text or at ids. Lists only grow: what
`context` hands to the engine is a prefix of what `row` hands to the trainer, so the two cannot differ; and
as `context` is no copy, the cost of an episode grows with its tokens and not with tokens times turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TrainingRow:
    """What the trainer gets. The response lists have equal length; log-probs of observed tokens are 0."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None


@dataclass
class Ledger:
    """Appends only. `logprobs` becomes None for good once a generation arrives without them."""

    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    _context: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._context = [*self.prompt_ids, *self.response_ids]

    def generated(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        """Take ids sampled by the policy, with their log-probs (nats) when the engine gave them."""
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} generated tokens but {len(logprobs)} log-probs")
        self._append(ids, 1, logprobs)

    def observed(self, ids: Sequence[int]) -> None:
        """Take ids put in by the environment."""
        self._append(ids, 0, [0.0] * len(ids))

    def context(self) -> list[int]:
        """Prompt and response so far: what the engine continues from.

        It is the ledger's own list. Read it while the engine is asked; who keeps it longer makes a copy.
        """
        return self._context

    def row(self) -> TrainingRow:
        """The training row, as a copy."""
        logprobs = None if self.logprobs is None else list(self.logprobs)
        return TrainingRow(list(self.prompt_ids), list(self.response_ids), list(self.mask), logprobs)

    def _append(self, ids: Sequence[int], mask: int, logprobs: Sequence[float] | None) -> None:
        self.response_ids.extend(ids)
        self._context.extend(ids)
        self.mask.extend([mask] * len(ids))
        if logprobs is None:
            self.logprobs = None if ids else self.logprobs
        elif self.logprobs is not None:
            self.logprobs.extend(logprobs)
