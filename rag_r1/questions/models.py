"""The teacher, who writes a draft for each seed, and the reader, who verifies it.

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

#: Tokens of a reply, unless the user's own keys say otherwise.
TEACHER_TOKENS, READER_TOKENS = 600, 100
#: Seeds of requests that have been sent for one sample before the next one's.
_ATTEMPTS_APART = 100


@asynccontextmanager
async def open_endpoint(
    model: ModelSpec, limits: RequestLimits, cache: ResponseCache, stop: CancelToken, spent: float = 0.0
) -> AsyncIterator[Endpoint]:
    """The endpoint of a model while the block runs; what it has cost before counts. `spent`: what others have
    cost. Raises RunError."""
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
    """Writes drafts. `temperature`: of its sampling."""

    def __init__(
        self, model: ModelSpec, prompts: Prompts, temperature: float, endpoint: Endpoint, cache: ResponseCache
    ):
        super().__init__("teacher", endpoint, cache)
        self.model, self.prompts, self.temperature = model, prompts, temperature

    async def draft(self, seed: Seed) -> Outcome:
        """The draft of a seed, or why there is none. Raises EngineFailure if the endpoint does not answer."""
        case = self.prompts.teacher_case(seed)
        first = int.from_bytes(hashlib.sha256(seed.id.encode()).digest()[:3], "big")

        def make(attempt: int) -> tuple[dict[str, Any], int]:
            sampling = {"temperature": self.temperature, "seed": first + attempt}
            instructions = self.prompts.instructions("teacher")
            body = request_body(self.model.model, instructions, case, TEACHER_TOKENS, **sampling)
            return with_own_keys(body, self.model.body, TEACHER_TOKENS)

        reply = await self.ask(
            f"teacher/{seed.id}", make, lambda text: read_teacher(text, len(seed.passages))
        )
        if not isinstance(reply, TeacherReply):
            declined = isinstance(reply, Declined)
            return Outcome(seed, reason="teacher_declined" if declined else "malformed_reply")
        passages = tuple(seed.passages[number - 1] for number in reply.passages)
        golds = golds_of(reply.answer, reply.aliases, passages)
        return Outcome(seed, Draft(seed, reply.question, golds, passages))


class Reader(StrictReplies):
    """Reads and answers."""

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
        """The answers for which a check refuses a draft, in words; None if it does not. `neighbours`: what
        a search finds beside the draft's own passages. Raises EngineFailure."""
        for number, passages in enumerate(check.shows(draft, neighbours)):
            answers: list[str | None] = []
            samples, needed = self.rules.samples, self._needed_votes(check, draft)
            while (
                decided := verdict(check.votes(draft, passages, answers), len(answers), samples, needed)
            ) is None:
                name = f"{check.step}/{draft.id}/{number}/{len(answers)}"
                answers.append(await self._answer(name, check, draft, passages, len(answers)))
            if decided == check.refuses:
                return "the reader: " + ", ".join("no answer" if a is None else a for a in answers)
        return None

    def _needed_votes(self, check: Check, draft: Draft) -> int:
        """The votes that make a verdict."""
        if not check.refuses:
            return self.rules.right
        return self.rules.samples if check.needs_all(draft) else self.rules.samples // 2 + 1

    async def _answer(
        self, name: str, check: Check, draft: Draft, passages: Sequence[str], sample: int
    ) -> str | None:
        """The reader's answer; None if it has none, or replied with no answer in any attempt."""
        is_standalone = check is STANDALONE
        instructions = self.prompts.instructions("standalone" if is_standalone else "reader")
        case = (
            self.prompts.standalone_case(draft.question)
            if is_standalone
            else self.prompts.reader_case(draft.question, passages)
        )

        def make(attempt: int) -> tuple[dict[str, Any], int]:
            temperature = RETRY_TEMPERATURE if sample or attempt else 0.0
            sampling = {"temperature": temperature, "seed": _ATTEMPTS_APART * sample + attempt}
            body = request_body(self.model.model, instructions, case, READER_TOKENS, **sampling)
            return with_own_keys(body, self.model.body, READER_TOKENS)

        return await self.ask(name, make, read_reader)
