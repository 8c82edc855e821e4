"""Estimates the cost of scoring candidates before the scoring begins.

The numbers of continuations and of requests to the judge are exact, apart from repetitions after failures.
Tokens are estimated under two assumptions: a continuation is as long as the rest of the agent's own episode
after that search, and the judge writes nothing but its list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_r1.evaluation.judge import JudgeArguments
from rag_r1.inference.character_codec import CHARS_PER_TOKEN, estimate_tokens
from rag_r1.protocols import Document
from rag_r1.retriever.data.candidates import CandidateStore
from rag_r1.retriever.data.prompts import instructions
from rag_r1.retriever.data.relevance import MAX_PASSAGE_CHARS, PASSAGES_PER_REQUEST
from rag_r1.retriever.data.rounds import PlayedTrajectory, SearchRound
from rag_r1.retriever.data.trajectories import TrajectoryReader
from rag_r1.retriever.selection.rules import Utility
from rag_r1.runs.response_cache import Usage

#: Assumed number of tokens that the judge writes for a score and for a sub-answer.
_SCORE_TOKENS, _SUB_ANSWER_TOKENS = 2, 8


@dataclass
class CostEstimate:
    """The work of scoring all candidates, including the part that is already done."""

    rounds: int
    #: Number of candidates of all rounds.
    passages: int
    continuations: int
    #: Requests to the agent's model, with their tokens.
    policy: Usage
    #: Requests to the judge, with their tokens.
    judge: Usage

    def lines(self, args: JudgeArguments, price_in: float, price_out: float) -> Iterator[str]:
        """Yield the estimate as lines of text, with the cost where prices are known. `price_in` and
        `price_out` are the prices of the agent's model; `args` has those of the judge."""
        yield f"to be scored: {self.passages:,} candidates of {self.rounds:,} searches"
        if self.continuations:
            amounts = _amounts(self.policy, self.policy.cost(price_in, price_out))
            yield f"  continuations of the agent: {self.continuations:,}, {amounts}"
        if self.judge.requests:
            amounts = _amounts(self.judge, self.judge.cost(args.judge_price_in, args.judge_price_out))
            yield f"  requests to the judge: {self.judge.requests:,}, {amounts}"


def estimate_cost(
    trajectories: TrajectoryReader,
    candidates: CandidateStore,
    utility: Utility,
    *,
    samples: int,
    in_characters: bool,
    has_judge: bool,
) -> CostEstimate:
    """Return the estimated work for all rounds.

    `utility` names the scores that are computed, and `samples` is the number of continuations of each
    candidate. `in_characters` says that the agent counts characters instead of tokens
    (rag_r1/inference/character_codec.py), and `has_judge` that relevance is scored by a judge and not by the
    rule.
    """
    estimate = CostEstimate(0, 0, 0, Usage(), Usage())
    relevance_prompt_tokens = estimate_tokens(instructions("relevance"))
    sub_answer_prompt_tokens = estimate_tokens(instructions("sub_answers"))
    units_per_token = CHARS_PER_TOKEN if in_characters else 1
    is_judged = has_judge and utility != "correctness"
    for trajectory in trajectories:
        passage_tokens = 0
        for search, documents in candidates.rounds([trajectory]):
            estimate.rounds += 1
            estimate.passages += len(documents)
            if utility != "relevance":
                count = len(documents) * samples
                estimate.continuations += count
                estimate.policy.add(_continuation_requests(search, count, units_per_token))
            if is_judged:
                estimate.judge.add(_relevance_requests(search, documents, relevance_prompt_tokens))
                passage_tokens += _passage_tokens(search.record.documents or ())
        if is_judged:
            estimate.judge.add(_sub_answer_request(trajectory, passage_tokens, sub_answer_prompt_tokens))
    return estimate


def _continuation_requests(search: SearchRound, count: int, units_per_token: int) -> Usage:
    """Return the usage of the agent's model for `count` continuations after this search. `units_per_token`
    is 1 if the agent counts tokens, and otherwise the number of characters in a token."""
    single = _usage_after(search)
    return Usage(
        count * single.requests,
        count * single.prompt_tokens // units_per_token,
        count * single.completion_tokens // units_per_token,
    )


def _relevance_requests(search: SearchRound, documents: Sequence[Document], prompt_tokens: int) -> Usage:
    """Return the judge's usage for scoring the candidates of a search. `prompt_tokens` is the length of its
    instructions."""
    requests = math.ceil(len(documents) / PASSAGES_PER_REQUEST)
    input_tokens = requests * (prompt_tokens + estimate_tokens(search.query)) + _passage_tokens(documents)
    return Usage(requests, input_tokens, _SCORE_TOKENS * len(documents))


def _sub_answer_request(trajectory: PlayedTrajectory, passage_tokens: int, prompt_tokens: int) -> Usage:
    """Return the judge's usage for the sub-answers of a trajectory. `passage_tokens` is the length of the
    passages that its searches found, `prompt_tokens` that of the judge's instructions."""
    turn_tokens = estimate_tokens("".join(turn.text for turn in trajectory.turns))
    input_tokens = prompt_tokens + estimate_tokens(trajectory.question) + turn_tokens + passage_tokens
    return Usage(1, input_tokens, _SUB_ANSWER_TOKENS * len(trajectory.rounds))


def _passage_tokens(documents: Sequence[Document]) -> int:
    """Return the estimated tokens of the passages, cut as the judge reads them."""
    return sum(estimate_tokens(document.contents[:MAX_PASSAGE_CHARS]) for document in documents)


def _usage_after(search: SearchRound) -> Usage:
    """Return the usage of the trajectory itself after this search, in the agent's unit (tokens or
    characters)."""
    usage = Usage()
    context_tokens = search.played.trajectory.prompt_tokens
    for index, turn in enumerate(search.played.turns):
        if index > search.turn:
            usage.add(Usage(1, context_tokens, turn.generated_tokens))
        context_tokens += turn.generated_tokens + turn.observed_tokens
    return usage


def _amounts(usage: Usage, cost: float) -> str:
    """Return the tokens of a usage as text, with the cost if it is known."""
    tokens = f"about {usage.prompt_tokens:,} prompt tokens and {usage.completion_tokens:,} generated tokens"
    return f"{tokens}, cost {cost:.4g}" if cost else tokens
