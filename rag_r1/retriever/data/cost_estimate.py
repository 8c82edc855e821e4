"""Estimates the cost of scoring candidates before it begins.

The numbers of continuations and of the judge's requests are exact, except for what is played or asked again
after a failure. Tokens are estimated: a continuation is taken to go on as the agent itself went on from that
search, and a judge to write nothing but its list.
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
from rag_r1.retriever.selection.rules import Use
from rag_r1.runs.response_cache import Usage

#: Tokens of an entry of the judge's list.
_SCORE_TOKENS, _SUB_ANSWER_TOKENS = 2, 8


@dataclass
class CostEstimate:
    """The work of scoring all candidates, done or not: numbers of rounds, of their candidates (`passages`)
    and of continuations, and the requests to the policy and to the judge with their tokens."""

    rounds: int
    passages: int
    continuations: int
    policy: Usage
    judge: Usage

    def lines(self, args: JudgeArguments, price_in: float, price_out: float) -> Iterator[str]:
        """The estimate as lines of text, with the cost where prices are known."""
        yield f"to be scored: {self.passages:,} candidates of {self.rounds:,} searches"
        if self.continuations:
            cost = _cost(self.policy.cost(price_in, price_out))
            yield f"  continuations of the agent: {self.continuations:,}, {_token_counts(self.policy)}{cost}"
        if self.judge.requests:
            cost = _cost(self.judge.cost(args.judge_price_in, args.judge_price_out))
            yield f"  requests to the judge: {self.judge.requests:,}, {_token_counts(self.judge)}{cost}"


def estimate_cost(
    trajectories: TrajectoryReader,
    candidates: CandidateStore,
    use: Use,
    *,
    samples: int,
    in_characters: bool,
    has_judge: bool,
) -> CostEstimate:
    """Estimate the work for all rounds. `samples`: continuations of each candidate; `in_characters`: whether
    the agent counts characters instead of tokens (rag_r1/inference/character_codec.py)."""
    estimate = CostEstimate(0, 0, 0, Usage(), Usage())
    relevance_prompt_tokens = estimate_tokens(instructions("relevance"))
    sub_answer_prompt_tokens = estimate_tokens(instructions("sub_answers"))
    units_per_token = CHARS_PER_TOKEN if in_characters else 1
    is_judged = has_judge and use != "correctness"
    for trajectory in trajectories:
        passage_tokens = 0
        for search, documents in candidates.rounds([trajectory]):
            estimate.rounds += 1
            estimate.passages += len(documents)
            if use != "relevance":
                count = len(documents) * samples
                estimate.continuations += count
                estimate.policy.add(_continuations(search, count, units_per_token))
            if is_judged:
                estimate.judge.add(_relevance_requests(search, documents, relevance_prompt_tokens))
                passage_tokens += _passage_tokens(search.record.documents or ())
        if is_judged:
            estimate.judge.add(_sub_answer_request(trajectory, passage_tokens, sub_answer_prompt_tokens))
    return estimate


def _continuations(search: SearchRound, count: int, units_per_token: int) -> Usage:
    """The agent's usage by `count` continuations after this search. `units_per_token`: 1 if the agent counts
    tokens, else the characters that are a token."""
    one = _continuation(search)
    return Usage(
        count * one.requests,
        count * one.prompt_tokens // units_per_token,
        count * one.completion_tokens // units_per_token,
    )


def _relevance_requests(search: SearchRound, documents: Sequence[Document], prompt_tokens: int) -> Usage:
    """The judge's usage by the scores of a search's candidates. `prompt_tokens`: those of its
    instructions."""
    requests = math.ceil(len(documents) / PASSAGES_PER_REQUEST)
    input_tokens = requests * (prompt_tokens + estimate_tokens(search.query)) + _passage_tokens(documents)
    return Usage(requests, input_tokens, _SCORE_TOKENS * len(documents))


def _sub_answer_request(trajectory: PlayedTrajectory, passage_tokens: int, prompt_tokens: int) -> Usage:
    """The judge's usage by the sub-answers of a trajectory. `passage_tokens`: those of the passages that its
    searches found; `prompt_tokens`: those of the judge's instructions."""
    turn_tokens = estimate_tokens("".join(turn.text for turn in trajectory.turns))
    input_tokens = prompt_tokens + estimate_tokens(trajectory.question) + turn_tokens + passage_tokens
    return Usage(1, input_tokens, _SUB_ANSWER_TOKENS * len(trajectory.rounds))


def _passage_tokens(documents: Sequence[Document]) -> int:
    """The tokens of the passages as the judge reads them."""
    return sum(estimate_tokens(document.contents[:MAX_PASSAGE_CHARS]) for document in documents)


def _continuation(search: SearchRound) -> Usage:
    """The agent's usage after this search in the trajectory itself, in the unit in which it counts."""
    usage = Usage()
    context_tokens = search.played.trajectory.prompt_tokens
    for number, turn in enumerate(search.played.turns):
        if number > search.turn:
            usage.add(Usage(1, context_tokens, turn.generated_tokens))
        context_tokens += turn.generated_tokens + turn.observed_tokens
    return usage


def _token_counts(usage: Usage) -> str:
    return f"about {usage.prompt_tokens:,} prompt tokens and {usage.completion_tokens:,} generated tokens"


def _cost(cost: float) -> str:
    return f", cost {cost:.4g}" if cost else ""
