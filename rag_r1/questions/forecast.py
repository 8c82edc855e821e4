"""Estimates the requests and tokens of `rag-r1 questions` before it runs, and the cost if prices are given.

The number of requests is an upper bound: it assumes that every draft reaches all checks, and that every check
takes all its samples. Malformed replies, which are requested again, come on top of it. Replies that an
earlier run has already cached are counted although they will not be requested. The tokens and the cost of
these requests are estimates from typical lengths of replies and from the mean length of a passage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rag_r1.inference.character_codec import estimate_tokens
from rag_r1.questions.prompts import PROMPTS, Prompts, truncate
from rag_r1.questions.seeds import MULTI_HOP, Seed
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.runs.response_cache import Usage

#: Typical number of tokens of a teacher's reply, of a reader's reply, and of a question.
_DRAFT_TOKENS = 60
_ANSWER_TOKENS = 10
_QUESTION_TOKENS = 25


def forecast(spec: QuestionsSpec, seeds: Sequence[Seed], prompts: Prompts) -> tuple[Usage, Usage]:
    """Return the most requests with estimates of their tokens: (usage of the teacher, usage of the
    reader)."""
    rules = spec.verification
    passage_tokens = _mean_passage_tokens(seeds)
    instruction_tokens = {name: estimate_tokens(prompts.instructions(name)) for name in PROMPTS}
    teacher, reader = Usage(), Usage()
    for seed in seeds:
        case_tokens = estimate_tokens(prompts.teacher_case(seed))
        teacher.add(Usage(1, instruction_tokens["teacher"] + case_tokens, _DRAFT_TOKENS))
        tokens_per_prompt = [
            instruction_tokens["reader"] + _QUESTION_TOKENS + tokens
            for tokens in _tokens_of_readings(seed, passage_tokens * rules.neighbours)
        ]
        if rules.review:
            tokens_per_prompt.append(instruction_tokens["review"] + _QUESTION_TOKENS)
        requests = rules.samples * len(tokens_per_prompt)
        reader.add(Usage(requests, rules.samples * sum(tokens_per_prompt), requests * _ANSWER_TOKENS))
    return teacher, reader


def _tokens_of_readings(seed: Seed, neighbour_tokens: int) -> list[int]:
    """Return the number of tokens of the passages in each reading of a draft.

    `neighbour_tokens` is the number for the neighbours that a search for the question finds. Searches for
    titles find half as many more, and the neighbours of a bridge include the passages that these lead to.
    """
    own = [estimate_tokens(truncate(passage.contents)) for passage in seed.passages]
    neighbours = int(neighbour_tokens * (2.5 if seed.kind == "bridge" else 1.5))
    readings = [sum(own), 0, neighbours]
    if seed.kind in MULTI_HOP:  # one passage is left out, and then replaced by neighbours
        remaining = [sum(own) - tokens for tokens in own]
        readings += [*remaining, *(tokens + neighbours for tokens in remaining)]
    return readings


def forecast_lines(
    spec: QuestionsSpec, seeds: Sequence[Seed], teacher: Usage, reader: Usage
) -> Iterator[str]:
    """Yield the lines in which the command prints the forecast."""
    yield f"seeds: {len(seeds):,}; at most as many questions"
    cost = 0.0
    for name, model, usage in (("teacher", spec.teacher, teacher), ("reader", spec.reading, reader)):
        model_cost = usage.cost(model.price_in, model.price_out)
        cost += model_cost
        priced = f", cost {model_cost:.4g}" if model_cost else ""
        yield (
            f"  {name} {model.model}: at most {usage.requests:,} requests, about {usage.prompt_tokens:,} "
            f"prompt tokens and {usage.completion_tokens:,} generated tokens{priced}"
        )
    if spec.limits.max_cost is not None and cost > spec.limits.max_cost:
        yield f"  --max-cost {spec.limits.max_cost:g} may end the run earlier: it may cost {cost:.4g}"


def _mean_passage_tokens(seeds: Sequence[Seed]) -> int:
    """Return the mean number of tokens of a passage over all seeds, rounded down; 0 without seeds."""
    counts = [estimate_tokens(truncate(passage.contents)) for seed in seeds for passage in seed.passages]
    return sum(counts) // max(len(counts), 1)
