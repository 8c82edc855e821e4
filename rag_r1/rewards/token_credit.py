"""Distributes the credit of a reward over the tokens that it is about.

`token_scores` returns a number for every token that the policy wrote. **They sum to the score** (up to the
rounding of floats), whatever the terms and however the text is cut into tokens, as the scores of the turns do
(credit.py). A term's value goes

- to the tokens of the spans that the term names (`parts` in registry.py): the format reward of Agentic RAG-R1
  to its tags, the relevance of what was found to the search blocks;
- turn by turn to all tokens of the turn, if the term gave one number for each turn;
- to all tokens of the trajectory, if it gave one number: it judges the outcome, to which all of them led.

Within a part, or a turn, all tokens have equal shares. What has no token to go to (a part without spans, a
turn without tokens) is spread over all tokens. The places are those of Agentic RAG-R1's token-level rewards
(src/models/reward_token_level.py). There each of these tokens has the whole value, so that the sum grows with
the length of the text and is not the reward; docs/rewards.md has the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """The score of each generated token, by turn; `result` is that of `reward` about `trajectory`.

    `tokens`: for each turn, where in its text each of its tokens stands, as a tokenizer's offsets tell
    (from, to); a token without text of its own has an empty span. `protocol`: the run's, if it is not a
    shipped one. Terms that are left out of the result
    give nothing. A trajectory without a token has a score, but none to give it to. Raises ValueError if
    `tokens` has another number of turns, or if the parts of a term do not sum to its value.
    """
    turns = trajectory.turns
    if len(tokens) != len(turns):
        raise ValueError(f"tokens of {len(tokens)} turns for a trajectory of {len(turns)}")
    starts = [0, *turn_ends(trajectory)]
    offsets = [(a + start, b + start) for start, spans in zip(starts, tokens, strict=False) for a, b in spans]
    numbers = iter(range(len(offsets)))
    numbers_by_turn = [[next(numbers) for _ in spans] for spans in tokens]
    scores = [0.0] * len(offsets)
    for term in reward.terms:
        credit = result.credits.get(term.name)
        if credit is None:
            continue
        for value, token_numbers in _shares(term, credit, trajectory, offsets, numbers_by_turn, protocol):
            for number in token_numbers or range(len(offsets)):
                scores[number] += term.weight * value / len(token_numbers or offsets)
    return [[scores[number] for number in numbers] for numbers in numbers_by_turn]


def _shares(
    term: Term,
    credit: Credit,
    trajectory: Trajectory,
    offsets: Sequence[Span],
    numbers_by_turn: Sequence[list[int]],
    protocol: Protocol | None,
) -> list[tuple[float, list[int]]]:
    """What a term gives, and the numbers of the tokens that share it; none: all of them."""
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
    return list(zip(credit.turns, numbers_by_turn, strict=True))


def _covered_tokens(spans: Sequence[Span], offsets: Sequence[Span]) -> list[int]:
    """The numbers of the tokens of which a character is in one of the spans."""
    # Character by character: tokens times spans would be millions for a text that is nothing but tags.
    covered = bytearray(max((last for _, last in spans), default=0))
    for first, last in spans:
        covered[first:last] = b"\1" * (last - first)
    return [number for number, (start, end) in enumerate(offsets) if covered.find(1, start, end) >= 0]
