"""Requests drafts from the teacher, who writes one for each seed, and answers from the reader.

Both are chat endpoints whose replies must have a form (rag_r1/inference/strict_replies.py); they may be one
model at one address. Every reply is kept before it is used: the teacher's in the run's cache, the reader's in
one of its own, so the usage of each is known. Together they may cost --max-cost: the reader has what the
teacher has left.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rag_r1.inference.client import Endpoint
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.inference.judging import request_body
from rag_r1.inference.rate_limit import RateLimiter
from rag_r1.inference.strict_replies import RETRY_TEMPERATURE, StrictReplies, with_own_keys
from rag_r1.questions.drafts import Draft, Outcome
from rag_r1.questions.prompts import Declined, Prompts, TeacherReply, read_reader, read_teacher
from rag_r1.questions.readings import STANDALONE, Check, verdict
from rag_r1.questions.rules import golds_of
from rag_r1.questions.seeds import Seed
from rag_r1.questions.spec import ModelSpec, RequestLimits, Verification
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.response_cache import ResponseCache

#: Most tokens of a reply, unless the user's own keys say otherwise.
TEACHER_TOKENS = 600
READER_TOKENS = 100
#: Distance between the seeds of two samples: that many attempts of a sample have seeds of their own.
_SEEDS_OF_A_SAMPLE = 100


@asynccontextmanager
async def open_endpoint(
    model: ModelSpec, limits: RequestLimits, cache: ResponseCache, stop: CancelToken, spent: float = 0.0
) -> AsyncIterator[Endpoint]:
    """The endpoint of a model while the block runs; what the cached replies have cost counts. `spent`: the
    cost of the other model, which --max-cost includes. Raises RunError."""
    max_cost = limits.max_cost
    if max_cost is not None and max_cost <= spent:
        stop(f"{spent:.4f} of --max-cost {max_cost:g} is spent")
        spent = 0.0
    remaining = None if max_cost is None else max_cost - spent
    spending = CostTracker(stop, model.price_in, model.price_out, remaining, cache.usage)
    endpoint = Endpoint(limits.endpoint(model), stop, spending, RateLimiter(limits.rpm, limits.tpm))
    try:
        yield endpoint
    finally:
        await endpoint.close()


class Teacher(StrictReplies):
    """Writes drafts, sampled at `temperature`."""

    def __init__(
        self, model: ModelSpec, prompts: Prompts, temperature: float, endpoint: Endpoint, cache: ResponseCache
    ):
        super().__init__("teacher", endpoint, cache)
        self.model, self.prompts, self.temperature = model, prompts, temperature

    async def draft(self, seed: Seed) -> Outcome:
        """The draft of a seed, or why there is none. Raises EngineFailure if the endpoint does not answer."""
        model = self.model.model
        instructions = self.prompts.instructions("teacher")
        case = self.prompts.teacher_case(seed)
        first = int.from_bytes(hashlib.sha256(seed.id.encode()).digest()[:3], "big")

        def make_request(attempt: int) -> tuple[dict[str, Any], int]:
            body = request_body(
                model, instructions, case, TEACHER_TOKENS, temperature=self.temperature, seed=first + attempt
            )
            return with_own_keys(body, self.model.body, TEACHER_TOKENS)

        reply = await self.ask(
            f"teacher/{seed.id}", make_request, lambda text: read_teacher(text, len(seed.passages))
        )
        if not isinstance(reply, TeacherReply):
            declined = isinstance(reply, Declined)
            return Outcome(seed, reason="teacher_declined" if declined else "malformed_reply")
        passages = tuple(seed.passages[number - 1] for number in reply.passages)
        golds = golds_of(reply.answer, reply.aliases, passages)
        return Outcome(seed, Draft(seed, reply.question, golds, passages))


class Reader(StrictReplies):
    """Answers questions from passages, to verify drafts by the `rules`."""

    def __init__(
        self,
        model: ModelSpec,
        prompts: Prompts,
        rules: Verification,
        endpoint: Endpoint,
        cache: ResponseCache,
    ):
        super().__init__("reader", endpoint, cache)
        self.model, self.prompts, self.rules = model, prompts, rules

    async def refuses(self, check: Check, draft: Draft, neighbours: Sequence[str]) -> str | None:
        """The answers for which a check refuses a draft, as a text; None if it does not. `neighbours`: texts
        that a search finds beside the draft's own passages. Raises EngineFailure."""
        for number, passages in enumerate(check.shows(draft, neighbours)):
            answers: list[str | None] = []
            samples = self.rules.samples
            needed = self._needed_votes(check, draft)
            while (
                decided := verdict(check.votes(draft, passages, answers), len(answers), samples, needed)
            ) is None:
                name = f"{check.step}/{draft.id}/{number}/{len(answers)}"
                answers.append(await self._answer(name, check, draft, passages, len(answers)))
            if decided == check.refuses:
                return "the reader: " + ", ".join("no answer" if a is None else a for a in answers)
        return None

    def _needed_votes(self, check: Check, draft: Draft) -> int:
        """The number of votes for yes that make the verdict yes."""
        if not check.refuses:
            return self.rules.right
        return self.rules.samples if check.needs_all(draft) else self.rules.samples // 2 + 1

    async def _answer(
        self, name: str, check: Check, draft: Draft, passages: Sequence[str], sample: int
    ) -> str | None:
        """The reader's answer; None if it has none, or replied with no answer in any attempt."""
        if check is STANDALONE:
            instructions = self.prompts.instructions("standalone")
            case = self.prompts.standalone_case(draft.question)
        else:
            instructions = self.prompts.instructions("reader")
            case = self.prompts.reader_case(draft.question, passages)

        def make_request(attempt: int) -> tuple[dict[str, Any], int]:
            temperature = RETRY_TEMPERATURE if sample or attempt else 0.0
            seed = _SEEDS_OF_A_SAMPLE * sample + attempt
            model = self.model.model
            body = request_body(model, instructions, case, READER_TOKENS, temperature=temperature, seed=seed)
            return with_own_keys(body, self.model.body, READER_TOKENS)

        return await self.ask(name, make_request, read_reader)
