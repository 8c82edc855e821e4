"""Distributes the credit of a reward over the tokens that it is about.

`token_scores` returns a number for every token that the policy wrote. **They sum to the score** (up to the
rounding of floats), whatever the terms and however the text is cut into tokens, as the scores of the turns do
(credit.py). A term's value goes

- to the tokens of the spans that the term names (`parts` in registry.py): the format reward of Agentic RAG-R1
  to its tags, the relevance of what was found to the search blocks;
- turn by turn to all tokens of the turn, if the term gave one number for each turn;
- to all tokens of the trajectory, if it gave one number: it judges the outcome, to which all of them led.

Within a part, or a turn, all tokens have equal shares. What has no token to go to (a part without spans, a
turn without tokens) is spread over all tokens. The spans are those of Agentic RAG-R1's token-level rewards
(src/models/reward_token_level.py). There each of these tokens has the whole value, so that the sum grows with
the length of the text and is not the reward; docs/rewards.md has the comparison.
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
    """Returns the score of each generated token, by turn; `result` is that of `reward` for `trajectory`.

    `tokens`: for each turn, the span of each of its tokens in the turn's text (a tokenizer's offsets); a
    token without text of its own has an empty span. `protocol`: the run's, if it is not a shipped one. Terms
    that are left out of the result give nothing, and a trajectory without tokens has no token scores. Raises
    ValueError if `tokens` has another number of turns, or if the parts of a term do not sum to its value.
    """
    turns = trajectory.turns
    if len(tokens) != len(turns):
        raise ValueError(f"tokens of {len(tokens)} turns for a trajectory of {len(turns)}")
    starts = [0, *turn_ends(trajectory)]
    offsets = [(a + start, b + start) for start, spans in zip(starts, tokens, strict=False) for a, b in spans]
    token_ends = accumulate(map(len, tokens))
    turn_tokens = [range(end - len(spans), end) for spans, end in zip(tokens, token_ends, strict=True)]
    scores = [0.0] * len(offsets)
    for term in reward.terms:
        credit = result.credits.get(term.name)
        if credit is None:
            continue
        for value, token_numbers in _shares(term, credit, trajectory, offsets, turn_tokens, protocol):
            for number in token_numbers or range(len(offsets)):
                scores[number] += term.weight * value / len(token_numbers or offsets)
    return [scores[numbers.start : numbers.stop] for numbers in turn_tokens]


def _shares(
    term: Term,
    credit: Credit,
    trajectory: Trajectory,
    offsets: Sequence[Span],
    turn_tokens: Sequence[range],
    protocol: Protocol | None,
) -> Sequence[tuple[float, Sequence[int]]]:
    """The values that a term gives, each with the numbers of the tokens that share it; no numbers: all
    tokens. `offsets`: the span of each token in the generated text; `turn_tokens`: the numbers of each turn's
    tokens."""
    parts_of = getattr(term.function, "credit_parts", None)
    if parts_of is not None:
        options = {**term.options, "protocol": term.options.get("protocol") or protocol}
        parts: list[SpanValue] = parts_of(trajectory, credit.value, **options)
        total = sum(part.value for part in parts)
        if abs(total - credit.value) > 1e-9 * max(1.0, abs(credit.value)):
            raise ValueError(f"the parts of the term {term.name!r} sum to {total}, not to {credit.value}")
        return [(part.value, _covered_tokens(part.spans, offsets)) for part in parts]
    if credit.is_outcome:
        return [(credit.value, [])]
    return list(zip(credit.turns, turn_tokens, strict=True))


def _covered_tokens(spans: Sequence[Span], offsets: Sequence[Span]) -> list[int]:
    """The numbers of the tokens that have a character in one of the spans."""
    # Character by character: tokens times spans would be millions for a text that is nothing but tags.
    covered = bytearray(max((last for _, last in spans), default=0))
    for first, last in spans:
        covered[first:last] = b"\1" * (last - first)
    return [number for number, (start, end) in enumerate(offsets) if covered.find(1, start, end) >= 0]
