"""Signals that show early when a training goes wrong, such as the log-probs of the parts of a turn.

**Parts.** A turn consists of a thought and a block that acts. The tokens before the opening tag of that block
are the `thought`; the others are the `call` (a search or another tool) or the `answer`. A token that crosses
the tag belongs to the block. A turn without such a block is a thought as a whole.

**Log-probs.** The mean of -log p over sampled tokens is an unbiased estimate of the policy's entropy at
temperature 1. It is available in every mode of the trainer, also where veRL does not compute `actor/entropy`.
If the likelihood of right answers falls although they are rewarded, the collapse that the LLDS paper
describes has begun (arXiv 2512.04220).

`part_logprobs` runs in the agent loop, where the tokens are; `signals` needs only the record, and
`group_signals` the rewards of all groups of a step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from rag_r1.agent.tokens.ledger import Span
from rag_r1.agent.trajectory import Trajectory, Turn
from rag_r1.protocols import Document, Protocol

PARTS = ("thought", "call", "answer")
#: The part to which the block that acts belongs, by the kind of the turn's action.
_PART_OF_ACTION = {"search": "call", "call": "call", "answer": "answer"}
#: [sum of the log-probs in nats, number of tokens] by part; a list, as in JSON.
Logprobs = dict[str, list[float]]


def part_logprobs(
    turns: Sequence[Turn], spans: Iterable[Span], protocol: Protocol, decode: Callable[[Sequence[int]], str]
) -> Logprobs:
    """Return {part: [sum of the log-probs in nats, number of tokens]} for each part that has tokens; {} if a
    generation has no log-probs."""
    opening_tags = [block.open for block in protocol.blocks if block.role != "think"]
    sums = {part: [0.0, 0.0] for part in PARTS}
    for span in spans:
        if not span.generated or not span.ids:
            continue
        if span.logprobs is None:
            return {}
        turn = turns[span.turn] if span.turn < len(turns) else None
        part = _PART_OF_ACTION.get(turn.action) if turn else None
        start = _block_start(span.ids, turn.text, opening_tags, decode) if turn and part else len(span.ids)
        for name, logprobs in (("thought", span.logprobs[:start]), (part, span.logprobs[start:])):
            if name and logprobs:
                sums[name][0] += sum(logprobs)
                sums[name][1] += len(logprobs)
    return {part: values for part, values in sums.items() if values[1]}


def _block_start(
    ids: Sequence[int], text: str, opening_tags: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> int:
    """Return the index of the token in which the last block in the text of a turn begins."""
    start = max(text.rfind(tag) for tag in opening_tags)
    if start <= 0:
        return 0
    # The shortest prefix whose text reaches into the tag ends with the token in which the tag begins.
    return bisect_left(range(1, len(ids) + 1), start + 1, key=lambda count: len(decode(ids[:count])))


def signals(
    trajectory: Trajectory, recall: Callable[[Sequence[Document]], float] | None = None
) -> dict[str, float | None]:
    """Return the signals of a trajectory, with the same names for all trajectories and None for an unknown
    value. `logprob` is the mean over all generated tokens; its negative estimates the entropy. `recall`
    returns the share of the gold passages that is among some documents; None if they are not known."""
    totals = [sum(column) for column in zip(*trajectory.logprobs.values(), strict=True)]
    tokens = trajectory.generated_tokens + trajectory.observed_tokens
    search_turns = sum(bool(turn.queries) for turn in trajectory.turns)
    calls = [call for turn in trajectory.turns for call in turn.calls]
    documents = [document for call in calls for document in call.documents or ()]
    cached = [call.cached for call in calls if call.status == "ok"]
    return {
        **{f"logprob_{part}": _mean(trajectory.logprobs.get(part, ())) for part in PARTS},
        "logprob": _mean(totals),
        "queries_per_search": trajectory.n_searches / search_turns if search_turns else None,
        "generated_tokens": float(trajectory.generated_tokens) if tokens else None,
        "observed_share": trajectory.observed_tokens / tokens if tokens else None,
        "cached_calls": sum(cached) / len(cached) if cached else None,
        "retrieval_recall": recall(documents) if recall else None,
    }


def group_signals(groups: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean standard deviation of the rewards within a group, and the share of groups whose rewards
    are all equal, from which nothing is learned; {} if no group has two rewards."""
    compared = [rewards for rewards in groups.values() if len(rewards) > 1]
    if not compared:
        return {}
    return {
        "group_deviation": fmean(map(pstdev, compared)),
        "groups_without_signal": sum(len(set(rewards)) == 1 for rewards in compared) / len(compared),
    }


def _mean(sum_and_count: Sequence[float]) -> float | None:
    """Return the mean from a [sum, count]; None if it is empty or the count is 0."""
    return sum_and_count[0] / sum_and_count[1] if sum_and_count and sum_and_count[1] else None
