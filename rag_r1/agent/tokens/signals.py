"""Signals of a trajectory that tell early when a training goes wrong: log-probs by part of a turn, and more.

**Parts.** A turn is a thought and then the block that acts: the tokens before its opening tag are the
`thought`, the others are the `call` (a search or another tool) or the `answer`. A turn without such a block
is a thought as a whole. A token that crosses the tag belongs to what follows.

**Log-probs.** The mean of -log p over sampled tokens is an unbiased estimate of the policy's entropy at
temperature 1, in every trainer mode and also where veRL does not compute `actor/entropy`. If the likelihood
of right answers falls while they are rewarded, the collapse of LLDS's paper has begun (arXiv 2512.04220).

`part_logprobs` runs where the tokens are, in the agent loop; `signals` reads the record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from rag_r1.agent.tokens.ledger import Span
from rag_r1.agent.trajectory import Trajectory, Turn
from rag_r1.protocols import Document, Protocol

PARTS = ("thought", "call", "answer")
#: The part of the block that acts, by the kind of the turn's action; other turns are thoughts.
_PART_OF = {"search": "call", "call": "call", "answer": "answer"}
Logprobs = dict[str, list[float]]


def part_logprobs(
    turns: Sequence[Turn], spans: Iterable[Span], protocol: Protocol, decode: Callable[[Sequence[int]], str]
) -> Logprobs:
    """The sum of the log-probs (nats) and the number of tokens of each part that has any: {part: [sum,
    tokens]}. Empty if a generation has no log-probs."""
    opening_tags = [block.open for block in protocol.blocks if block.role != "think"]
    sums = {part: [0.0, 0.0] for part in PARTS}
    for span in spans:
        if not span.generated or not span.ids:
            continue
        if span.logprobs is None:
            return {}
        turn = turns[span.turn] if span.turn < len(turns) else None
        part = _PART_OF.get(turn.action) if turn else None
        start = _block_start(span.ids, turn.text, opening_tags, decode) if turn and part else len(span.ids)
        for name, values in (("thought", span.logprobs[:start]), (part, span.logprobs[start:])):
            if name and values:
                sums[name][0] += sum(values)
                sums[name][1] += len(values)
    return {part: values for part, values in sums.items() if values[1]}


def _block_start(
    ids: Sequence[int], text: str, opening_tags: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> int:
    """The number of the first token of the last block that begins in a turn's text."""
    start = max(text.rfind(tag) for tag in opening_tags)
    if start <= 0:
        return 0
    # The first prefix whose text goes beyond the tag's beginning ends with the token in which the tag begins.
    return bisect_left(range(1, len(ids) + 1), start + 1, key=lambda count: len(decode(ids[:count])))


def signals(
    record: Trajectory, recall: Callable[[Sequence[Document]], float] | None = None
) -> dict[str, float | None]:
    """The signals of a trajectory, the same names for all; what is not known is None. `recall`: the share of
    the gold passages among documents. `logprob` is over all generated tokens; its negative is an estimate of
    the entropy."""
    totals = [sum(column) for column in zip(*record.logprobs.values(), strict=True)] or [0.0, 0.0]
    tokens = record.generated_tokens + record.observed_tokens
    search_turns = sum(bool(turn.queries) for turn in record.turns)
    documents = [doc for turn in record.turns for call in turn.calls for doc in call.documents or ()]
    cached = [call.cached for turn in record.turns for call in turn.calls if call.status == "ok"]
    return {
        **{f"logprob_{part}": _mean(record.logprobs.get(part, ())) for part in PARTS},
        "logprob": _mean(totals),
        "queries_per_search": record.n_searches / search_turns if search_turns else None,
        "generated_tokens": float(record.generated_tokens) if tokens else None,
        "observed_share": record.observed_tokens / tokens if tokens else None,
        "cached_calls": sum(cached) / len(cached) if cached else None,
        "retrieval_recall": recall(documents) if recall else None,
    }


def group_signals(groups: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of the rewards of each group: the mean of their standard deviations, and the share of groups whose
    rewards are all equal, which teach nothing. {} without a group of two."""
    compared = [rewards for rewards in groups.values() if len(rewards) > 1]
    if not compared:
        return {}
    return {
        "group_deviation": sum(map(_deviation, compared)) / len(compared),
        "groups_without_signal": sum(len(set(rewards)) == 1 for rewards in compared) / len(compared),
    }


def _mean(values: Sequence[float]) -> float | None:
    """The mean, from a sum and a number of tokens."""
    return values[0] / values[1] if values and values[1] else None


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
