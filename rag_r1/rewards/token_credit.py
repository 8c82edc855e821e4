"""Distributes a reward over the tokens that have earned it.

`token_scores` returns a number for every token that the policy wrote. Like the scores of the turns
(credit.py), **they sum to the score**, up to the rounding of floats, whatever the terms are and however the
text is cut into tokens. The value of a term goes

- to the tokens of the spans that the term names (`parts` in registry.py): for the format reward of Agentic
  RAG-R1 these are its tags, for the relevance of the documents the search blocks;
- to all tokens of each turn, if the term returned one number for each turn;
- to all tokens of the trajectory, if it returned one number: it judges the outcome, to which all of them led.

All tokens of a part, or of a turn, have equal shares. A value without tokens (a part without spans, a turn
without tokens) is spread over all tokens of the trajectory. A trajectory without any token has no scores.

The spans are those of Agentic RAG-R1's token-level rewards (src/models/reward_token_level.py). There,
however, each of these tokens gets the whole value, so the sum grows with the length of the text and is not
the reward; docs/rewards.md compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol
from rag_r1.rewards.credit import Credit
from rag_r1.rewards.reward_sum import RewardResult, RewardSum
from rag_r1.rewards.spans import Span, SpanValue, turn_ends
from rag_r1.rewards.term_call import Term


def token_scores(
    reward: RewardSum,
    result: RewardResult,
    trajectory: Trajectory,
    tokens: Sequence[Sequence[Span]],
    protocol: Protocol | None = None,
) -> list[list[float]]:
    """Return the score of each generated token, by turn; `result` is that of `reward` for `trajectory`.

    `tokens` has, for each turn, the span of each token in the text of the turn (a tokenizer's offsets); a
    token without text has an empty span. `protocol` is that of the run, if it is not a shipped one. Terms
    without a value contribute nothing. Raises ValueError if `tokens` has another number of turns, or if the
    parts of a term do not sum to its value, and ProtocolError if a term needs tags, `protocol` is None, and
    no shipped protocol has the name in the trajectory.
    """
    turns = trajectory.turns
    if len(tokens) != len(turns):
        raise ValueError(f"tokens of {len(tokens)} turns for a trajectory of {len(turns)}")
    starts = [0, *turn_ends(trajectory)]
    # Not strict, since the last start is the end of the text.
    offsets = [(a + start, b + start) for start, spans in zip(starts, tokens, strict=False) for a, b in spans]
    token_ends = accumulate(map(len, tokens))
    turn_tokens = [range(end - len(spans), end) for spans, end in zip(tokens, token_ends, strict=True)]
    scores = [0.0] * len(offsets)
    for term in reward.terms:
        credit = result.credits.get(term.name)
        if credit is None:
            continue
        for value, indices in _shares(term, credit, trajectory, offsets, turn_tokens, protocol):
            sharing_tokens = indices or range(len(offsets))
            for index in sharing_tokens:
                scores[index] += term.weight * value / len(sharing_tokens)
    return [scores[indices.start : indices.stop] for indices in turn_tokens]


def _shares(
    term: Term,
    credit: Credit,
    trajectory: Trajectory,
    offsets: Sequence[Span],
    turn_tokens: Sequence[range],
    protocol: Protocol | None,
) -> Sequence[tuple[float, Sequence[int]]]:
    """Return the values that a term gives, each with the indices of the tokens that share it; without
    indices, all tokens share it. `offsets` has the span of each token in the generated text, and
    `turn_tokens` the indices of the tokens of each turn. Raises ValueError if the parts of the term do not
    sum to its value."""
    parts_of = getattr(term.function, "credit_parts", None)
    if parts_of is not None:
        options = {**term.options, "protocol": term.options.get("protocol") or protocol}
        parts: list[SpanValue] = parts_of(trajectory, credit.value, **options)
        total = sum(part.value for part in parts)
        # The margin allows for rounding: the term may have added its parts in another order.
        if abs(total - credit.value) > 1e-9 * max(1.0, abs(credit.value)):
            raise ValueError(f"the parts of the term {term.name!r} sum to {total}, not to {credit.value}")
        return [(part.value, _covered_tokens(part.spans, offsets)) for part in parts]
    if credit.is_outcome:
        return [(credit.value, [])]
    return list(zip(credit.turns, turn_tokens, strict=True))


def _covered_tokens(spans: Sequence[Span], offsets: Sequence[Span]) -> list[int]:
    """Return the indices of the tokens that have a character in one of the spans."""
    # Spans are marked character by character: comparing each token with each span would be quadratic for a
    # text that consists of tags.
    covered = bytearray(max((last for _, last in spans), default=0))
    for first, last in spans:
        covered[first:last] = b"\1" * (last - first)
    return [index for index, (start, end) in enumerate(offsets) if covered.find(1, start, end) >= 0]
