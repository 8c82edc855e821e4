"""Estimates the requests and tokens of a run before it starts, and their cost if prices are given.

The requests are the most that can be: every draft passes all checks, and every check asks all its samples.
Replies that are refused and requested again come on top of that, what a cache already has is counted too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rag_r1.inference.character_codec import estimate_tokens
from rag_r1.questions.prompts import Prompts, truncate
from rag_r1.questions.seeds import MULTI_HOP, Seed
from rag_r1.questions.spec import QuestionsSpec
from rag_r1.runs.response_cache import Usage

#: Tokens of a reply of the teacher.
_DRAFT_TOKENS = 60
#: Tokens of a reply of the reader.
_ANSWER_TOKENS = 10
_QUESTION_TOKENS = 25


def forecast(spec: QuestionsSpec, seeds: Sequence[Seed], prompts: Prompts) -> tuple[Usage, Usage]:
    """(usage of the teacher, usage of the reader), at most."""
    rules = spec.verification
    passage_tokens = _mean_passage_tokens(seeds)
    instruction_tokens = {
        name: estimate_tokens(prompts.instructions(name)) for name in ("teacher", "reader", "standalone")
    }
    teacher, reader = Usage(), Usage()
    for seed in seeds:
        case_tokens = estimate_tokens(prompts.teacher_case(seed))
        teacher.add(Usage(1, instruction_tokens["teacher"] + case_tokens, _DRAFT_TOKENS))
        texts = [estimate_tokens(truncate(passage.contents)) for passage in seed.passages]
        shares = 2.5 if seed.kind == "bridge" else 1.5  # by the question, by titles, and where these lead to
        neighbours = int(passage_tokens * rules.neighbours * shares)
        readings = [sum(texts), 0, neighbours]
        if seed.kind in MULTI_HOP:  # without each one, and with others in its place
            remaining = [sum(texts) - tokens for tokens in texts]
            readings += [*remaining, *(tokens + neighbours for tokens in remaining)]
        prompt = sum(instruction_tokens["reader"] + _QUESTION_TOKENS + tokens for tokens in readings)
        count = len(readings) + rules.standalone
        prompt += rules.standalone * (instruction_tokens["standalone"] + _QUESTION_TOKENS)
        reader.add(
            Usage(rules.samples * count, rules.samples * prompt, rules.samples * count * _ANSWER_TOKENS)
        )
    return teacher, reader


def forecast_lines(
    spec: QuestionsSpec, seeds: Sequence[Seed], teacher: Usage, reader: Usage
) -> Iterator[str]:
    """The lines that print the forecast."""
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
        yield f"  --max-cost {spec.limits.max_cost:g} may end the run before: it may cost {cost:.4g}"


def _mean_passage_tokens(seeds: Sequence[Seed]) -> int:
    """The mean number of tokens of the seeds' passages."""
    texts = [estimate_tokens(truncate(passage.contents)) for seed in seeds for passage in seed.passages]
    return sum(texts) // max(len(texts), 1)
