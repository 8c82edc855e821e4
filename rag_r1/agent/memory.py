"""The memory: a stack of the turns in the context, each with the observation that followed it.

The context is the prompt and the turns on the stack. The stack holds the ledger's spans, i.e. the very tokens
that were generated and observed. Each new turn is pushed. An observation belongs to the turn that called for
it, so the two are removed together. Two kinds of turns remove others when they are pushed:

    backtrack   removes the turns from the last one with a role in `pops`; its own text, the reflection, stays
    summary     removes the turns that it summarises: all, or those from the last call

Plans are never removed. The remaining turns keep their order and their tokens, so the new context is a
concatenation of spans that the engine has seen, and nothing is encoded again.

The state of the memory measures how unsure the policy was of what is on the stack: the sum of -log p over the
tokens that it sampled for these turns, in nats. TC-RAG sums the entropies of the tokens' distributions
instead. That needs the probabilities of all tokens, while engines return only that of the sampled token; the
entropy is the expectation of -log p. The sum grows with the number of tokens, so TC-RAG's threshold (sigma,
1.2) does not carry over. To choose one, run an evaluation with a `max_state` above all states, and let
`rag-r1 eval sigma` propose it from the states of right and wrong answers in the records.

With the default of `pops` this is TC-RAG's stack: a backtrack removes the last turn, together with its
observation if it has one.

Source: TC-RAG (arXiv 2408.09199), section 4; Agentic RAG-R1 (jiangxinke/Agentic-RAG-R1), whose code hides
spans by an attention mask instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from rag_r1.agent.tokens.ledger import Span
from rag_r1.protocols.actions import SummarySpan

#: Roles that are never removed.
LASTING = ("plan",)


@dataclass
class MemoryEntry:
    """A turn in the context."""

    #: `call`, or the kind of the turn's action.
    role: str
    #: The turn's spans in the ledger: first the generated one, then the observed ones.
    spans: list[Span]

    @property
    def turn(self) -> int:
        """Index of the turn in the episode."""
        return self.spans[0].turn


class Memory:
    """The stack of the turns in the context, with the latest turn on top."""

    def __init__(self) -> None:
        #: From the bottom of the stack to the top.
        self.entries: list[MemoryEntry] = []

    def push(self, role: str, generated: Span) -> None:
        """Push a turn with its generated span."""
        self.entries.append(MemoryEntry(role, [generated]))

    def add_observed(self, span: Span) -> None:
        """Add an observed span to the turn on top."""
        self.entries[-1].spans.append(span)

    def backtrack(self, pops: Collection[str]) -> list[int]:
        """Remove the turns below the top, from the last one with a role in `pops`. Returns their indices in
        the episode, in order."""
        return self._remove_from(self._last_position(pops))

    def summarise(self, span: SummarySpan) -> list[int]:
        """Remove the turns below the top: all of them (`everything`), or those from the last call
        (`last_call`). Returns their indices in the episode, in order."""
        return self._remove_from(0 if span == "everything" else self._last_position(("call",)))

    def state(self) -> float | None:
        """Return the sum of -log p over the generated tokens of all turns on the stack, in nats; None if the
        engine gives no log-probs."""
        total = 0.0
        for entry in self.entries:
            if entry.spans[0].logprobs is None:
                return None
            total -= sum(entry.spans[0].logprobs)
        return total

    def ids(self) -> Iterator[int]:
        """Yield the token ids of all turns, in order."""
        return (token for entry in self.entries for span in entry.spans for token in span.ids)

    def _last_position(self, roles: Collection[str]) -> int | None:
        """Return the position of the last turn below the top that has one of these roles and may be removed;
        None if there is none."""
        removable = set(roles) - set(LASTING)
        positions = range(len(self.entries) - 2, -1, -1)
        return next((i for i in positions if self.entries[i].role in removable), None)

    def _remove_from(self, position: int | None) -> list[int]:
        """Remove the turns from a position up to the top, except the top and lasting turns; None removes
        nothing. Returns their indices in the episode, in order."""
        if position is None:
            return []
        below, top = self.entries[position:-1], self.entries[-1]
        lasting = [entry for entry in below if entry.role in LASTING]
        self.entries[position:] = [*lasting, top]
        return [entry.turn for entry in below if entry.role not in LASTING]
