"""The memory stack: the turns in the context, each with the observation that the environment added to it.

The context is the prompt and the turns on the stack, in the very tokens in which they were generated and
observed: the stack holds the ledger's spans. A new turn is pushed; an observation belongs to the turn that
called for it, so it is removed together with its call. Two kinds of turns remove others when they are pushed:

    backtrack   removes the turns from the last one of a role in `pops`; its own text, the reflection, stays
    summary     removes the span that it summarises: all turns, or those from the last call

Plans are never removed. Whatever is removed, the remaining turns keep their order and their tokens, so the
new context is a concatenation of spans that the engine has seen, and nothing is encoded again.

The state of the memory is how sure the policy was of what it still holds: the sum of -log p of the tokens it
sampled for the turns on the stack, in nats. TC-RAG sums the entropies of the tokens' distributions instead,
for which it needs all of a token's probabilities; engines return that of the sampled token, and the
expectation of -log p is that entropy. The sum grows with the number of tokens, so a threshold (TC-RAG's sigma
of 1.2) must be chosen anew: play questions with a `max_state` above all states, and let `rag-r1 eval sigma`
propose one from the states of right and wrong answers, which stand in the records.

TC-RAG's stack is this one with `pops` at its default: a backtrack after an observation removes the
observation and its call, and after a thought, a summary or another backtrack that turn.

Source: TC-RAG (arXiv 2408.09199), section 4; Agentic RAG-R1 (jiangxinke/Agentic-RAG-R1), whose code hides
spans by an attention mask instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from rag_r1.agent.tokens.ledger import Span

#: Roles that are never removed.
LASTING = ("plan",)


@dataclass
class MemoryEntry:
    """A turn in the context. `role`: `call`, or the kind of the turn's action; `spans`: the ledger's spans,
    first the generated one, then the observed ones."""

    role: str
    spans: list[Span]

    @property
    def number(self) -> int:
        """Number of the turn, from 0."""
        return self.spans[0].turn


class Memory:
    """The turns in the context, the first at the bottom."""

    def __init__(self) -> None:
        self.entries: list[MemoryEntry] = []

    def push(self, role: str, generated: Span) -> None:
        """Put a turn on the stack, with the span that was generated."""
        self.entries.append(MemoryEntry(role, [generated]))

    def add_observed(self, span: Span) -> None:
        """Add what the environment has put after the turn on top."""
        self.entries[-1].spans.append(span)

    def backtrack(self, pops: Collection[str]) -> list[int]:
        """Remove the turns under the one on top, from the last with a role in `pops`; returns their numbers,
        in order."""
        return self._remove_from(self._last(pops))

    def summarise(self, span: str) -> list[int]:
        """Remove the turns under the one on top: all of them (`everything`), or those from the last call
        (`last_call`). Returns their numbers, in order."""
        return self._remove_from(0 if span == "everything" else self._last(("call",)))

    def state(self) -> float | None:
        """Returns the sum of -log p of the generated tokens of all turns on the stack, in nats; None if the
        engine gives no log-probs."""
        total = 0.0
        for entry in self.entries:
            if entry.spans[0].logprobs is None:
                return None
            total -= sum(entry.spans[0].logprobs)
        return total

    def ids(self) -> Iterator[int]:
        """Yields the token ids of all turns, in their order."""
        return (token for entry in self.entries for span in entry.spans for token in span.ids)

    def _last(self, roles: Collection[str]) -> int | None:
        """The position of the last turn under the one on top that has one of these roles and may be removed;
        None if there is none."""
        removable = set(roles) - set(LASTING)
        positions = range(len(self.entries) - 2, -1, -1)
        return next((i for i in positions if self.entries[i].role in removable), None)

    def _remove_from(self, position: int | None) -> list[int]:
        """Remove the turns from a position to the one under the top, except lasting ones; returns their
        numbers, in order. None: removes nothing."""
        if position is None:
            return []
        below, top = self.entries[position:-1], self.entries[-1]
        lasting = [entry for entry in below if entry.role in LASTING]
        self.entries[position:] = [*lasting, top]
        return [entry.number for entry in below if entry.role not in LASTING]
