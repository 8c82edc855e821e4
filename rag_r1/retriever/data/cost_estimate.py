"""Estimates the cost of scoring candidates before it begins.

The numbers of continuations and of the judge's requests are exact, except for what is played or asked again
after a failure. Tokens are estimated: a continuation is taken to go on as the agent itself went on from that
search, and a judge to write nothing but its list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_r1.evaluation.judge import JudgeArguments
from rag_r1.inference.character_codec import CHARS_PER_TOKEN, estimate_tokens
from rag_r1.protocols import Document
from rag_r1.retriever.data.candidates import CandidateStore
from rag_r1.retriever.data.judge import instructions
from rag_r1.retriever.data.relevance import MAX_CHARS, PASSAGES_PER_REQUEST
from rag_r1.retriever.data.rounds import PlayedTrajectory, SearchRound
from rag_r1.retriever.data.trajectories import TrajectoryReader
from rag_r1.retriever.selection.rules import Use
from rag_r1.runs.response_cache import Usage

#: Tokens of an entry of the judge's list.
_SCORE, _SUB_ANSWER = 2, 8


@dataclass
class CostEstimate:
    """Work of each kind, done or not. `policy` and `judge`: requests and their tokens."""

    rounds: int
    passages: int
    continuations: int
    policy: Usage
    judge: Usage

    def lines(self, args: JudgeArguments, price_in: float, price_out: float) -> Iterator[str]:
        """In words, with the cost if prices are known."""
        yield f"to be scored: {self.passages:,} candidates of {self.rounds:,} searches"
        if self.continuations:
            cost = _cost(self.policy.cost(price_in, price_out))
            yield f"  continuations of the agent: {self.continuations:,}, {_tokens(self.policy)}{cost}"
        if self.judge.requests:
            cost = _cost(self.judge.cost(args.judge_price_in, args.judge_price_out))
            yield f"  requests to the judge: {self.judge.requests:,}, {_tokens(self.judge)}{cost}"


def estimate_cost(
    trajectories: TrajectoryReader,
    candidates: CandidateStore,
    use: Use,
    *,
    samples: int,
    in_characters: bool,
    has_judge: bool,
) -> CostEstimate:
    """The work for all rounds. `in_characters`: whether the agent counts characters
    (rag_r1/inference/character_codec.py)."""
    estimate = CostEstimate(0, 0, 0, Usage(), Usage())
    relevance_prompt = estimate_tokens(instructions("relevance"))
    sub_answer_prompt = estimate_tokens(instructions("sub_answers"))
    unit = CHARS_PER_TOKEN if in_characters else 1
    is_judged = has_judge and use != "correctness"
    for trajectory in trajectories:
        passage_tokens = 0
        for search, documents in candidates.rounds([trajectory]):
            estimate.rounds += 1
            estimate.passages += len(documents)
            if use != "relevance":
                count = len(documents) * samples
                estimate.continuations += count
                estimate.policy.add(_continuations(search, count, unit))
            if is_judged:
                estimate.judge.add(_relevance_requests(search, documents, relevance_prompt))
                passage_tokens += _passage_tokens(search.record.documents or ())
        if is_judged:
            estimate.judge.add(_sub_answer_request(trajectory, passage_tokens, sub_answer_prompt))
    return estimate


def _continuations(search: SearchRound, count: int, unit: int) -> Usage:
    """What `count` continuations after this search take of the agent. `unit`: how many of the units in which
    it counts are a token."""
    requests, input_tokens, output_tokens = _continuation(search)
    return Usage(count * requests, count * input_tokens // unit, count * output_tokens // unit)


def _relevance_requests(search: SearchRound, documents: Sequence[Document], prompt_tokens: int) -> Usage:
    """What the scores of a search's candidates take of the judge, several of them in one request.
    `prompt_tokens`: those of its instructions."""
    requests = -(-len(documents) // PASSAGES_PER_REQUEST)
    input_tokens = requests * (prompt_tokens + estimate_tokens(search.query)) + _passage_tokens(documents)
    return Usage(requests, input_tokens, _SCORE * len(documents))


def _sub_answer_request(trajectory: PlayedTrajectory, passage_tokens: int, prompt_tokens: int) -> Usage:
    """What the sub-answers of a trajectory take of the judge. `passage_tokens`: those of the passages of its
    searches; `prompt_tokens`: those of the judge's instructions."""
    turn_tokens = estimate_tokens("".join(turn.text for turn in trajectory.turns))
    input_tokens = prompt_tokens + estimate_tokens(trajectory.question) + turn_tokens + passage_tokens
    return Usage(1, input_tokens, _SUB_ANSWER * len(trajectory.rounds))


def _passage_tokens(documents: Sequence[Document]) -> int:
    """Tokens of the passages as a judge reads them."""
    return sum(estimate_tokens(document.contents[:MAX_CHARS]) for document in documents)


def _continuation(search: SearchRound) -> tuple[int, int, int]:
    """Requests of the agent after this search, tokens of their contexts, and tokens that it generated."""
    context, requests, prompt, generated = search.played.trajectory.prompt_tokens, 0, 0, 0
    for number, turn in enumerate(search.played.turns):
        if number > search.turn:
            requests, prompt, generated = requests + 1, prompt + context, generated + turn.generated_tokens
        context += turn.generated_tokens + turn.observed_tokens
    return requests, prompt, generated


def _tokens(usage: Usage) -> str:
    return f"about {usage.prompt_tokens:,} prompt tokens and {usage.completion_tokens:,} generated tokens"


def _cost(cost: float) -> str:
    return f", cost {cost:.4g}" if cost else ""
