"""The two models of a run: the teacher, who writes a draft for each seed, and the reader, who verifies it.

Both are chat endpoints, and may be the same model. A reply that does not have the required form is requested
again (rag_r1/inference/strict_replies.py). Every reply is cached before it is used; the teacher and the
reader have separate caches, so that the usage of each is known. `--max-cost` limits their total cost: each
may spend what the other has left.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rag_r1.data.languages import language_of
from rag_r1.inference.client import Endpoint, key_of
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.inference.episode_client import with_own_keys
from rag_r1.inference.judging import request_body
from rag_r1.inference.rate_limit import RateLimiter
from rag_r1.inference.strict_replies import RETRY_TEMPERATURE, StrictReplies
from rag_r1.questions.drafts import Draft, Outcome, Refusal
from rag_r1.questions.prompts import Declined, Prompts, TeacherReply, read_reader, read_teacher
from rag_r1.questions.readings import REVIEW, Check, verdict
from rag_r1.questions.rules import golds_of
from rag_r1.questions.seeds import Seed
from rag_r1.questions.spec import ModelSpec, QuestionsSpec, RequestLimits, Verification
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.response_cache import ResponseCache

#: Limits of a reply in tokens, unless the user's request keys (`--body`) set another limit.
TEACHER_TOKENS = 600
READER_TOKENS = 100
#: Distance between the sampling seeds of two samples, so that up to 100 attempts of a sample differ in seed.
_SEEDS_PER_SAMPLE = 100


def prompts_of(spec: QuestionsSpec) -> Prompts:
    """Return the prompts of the models, which must not contain their keys."""
    return Prompts(key_of(model.key_variable) for model in (spec.teacher, spec.reading))


@asynccontextmanager
async def open_endpoint(
    model: ModelSpec, limits: RequestLimits, cache: ResponseCache, stop: CancelToken, spent: float = 0.0
) -> AsyncIterator[Endpoint]:
    """Open the endpoint of a model for the length of a `with` block.

    The cost of the replies in `cache` counts towards `--max-cost`, and so does `spent`, the cost of the
    other model. `stop` is called before a request that could exceed it. Raises RunError if the endpoint
    cannot be opened.
    """
    spending = CostTracker(stop, model.price_in, model.price_out, limits.max_cost, cache.usage, spent)
    endpoint = Endpoint(limits.endpoint(model), stop, spending, RateLimiter(limits.rpm, limits.tpm))
    try:
        yield endpoint
    finally:
        await endpoint.close()


class Teacher(StrictReplies):
    """Writes a draft for a seed, sampled at `temperature`, and after the first attempt at no less than
    RETRY_TEMPERATURE."""

    def __init__(
        self, model: ModelSpec, prompts: Prompts, temperature: float, endpoint: Endpoint, cache: ResponseCache
    ):
        super().__init__("teacher", endpoint, cache)
        self.model, self.prompts, self.temperature = model, prompts, temperature

    async def draft(self, seed: Seed) -> Outcome:
        """Return the outcome with the draft for a seed, or with the reason why there is none.

        Raises EngineFailure if the endpoint does not answer, and RunError if the disk is full.
        """
        model = self.model.model
        instructions = self.prompts.instructions("teacher")
        case = self.prompts.teacher_case(seed)
        offset = int.from_bytes(hashlib.sha256(seed.id.encode()).digest()[:3], "big")

        def make_request(attempt: int) -> tuple[dict[str, Any], int]:
            temperature = max(self.temperature, RETRY_TEMPERATURE) if attempt else self.temperature
            body = request_body(
                model, instructions, case, TEACHER_TOKENS, temperature=temperature, seed=offset + attempt
            )
            return with_own_keys(body, self.model.body, TEACHER_TOKENS)

        reply = await self.ask(
            f"teacher/{seed.id}", make_request, lambda text: read_teacher(text, len(seed.passages))
        )
        if not isinstance(reply, TeacherReply):
            declined = isinstance(reply, Declined)
            return Outcome(seed, reason="teacher_declined" if declined else "malformed_reply")
        passages = tuple(seed.passages[number - 1] for number in reply.passages)
        golds = golds_of(seed.kind, reply.answer, reply.aliases, passages)
        return Outcome(seed, Draft(seed, reply.question, golds, passages))


class Reader(StrictReplies):
    """Answers questions from passages, and so verifies drafts by the `rules`."""

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

    async def refusal(self, check: Check, draft: Draft, neighbours: Sequence[str] = ()) -> Refusal | None:
        """Apply a check to a draft. Returns the refusal, whose detail quotes the reader's answers; None if
        the draft passes.

        `neighbours` are the texts of passages that a search finds beside the draft's own. In each reading the
        reader is asked until further samples cannot change the verdict. Raises EngineFailure if the endpoint
        does not answer, and RunError if the disk is full.
        """
        for reading, passages in enumerate(check.shows(draft, neighbours)):
            answers: list[str | None] = []
            while (is_yes := self._verdict(check, draft, passages, answers)) is None:
                name = f"{check.step}/{draft.id}/{reading}/{len(answers)}"
                answers.append(await self._answer(name, check, draft, passages, len(answers)))
            if is_yes == check.refusing_verdict:
                quoted = ", ".join("no answer" if answer is None else answer for answer in answers)
                return Refusal(check.reason_for(answers), f"the reader: {quoted}")
        return None

    def _verdict(
        self, check: Check, draft: Draft, passages: Sequence[str], answers: Sequence[str | None]
    ) -> bool | None:
        """Return the verdict of a reading by its answers so far; None while more answers are needed."""
        samples = self.rules.samples
        if not check.refusing_verdict:
            needed = self.rules.right
        else:
            needed = samples if check.needs_all(draft) else samples // 2 + 1
        return verdict(check.votes(draft, passages, answers), len(answers), samples, needed)

    async def _answer(
        self, name: str, check: Check, draft: Draft, passages: Sequence[str], sample: int
    ) -> str | None:
        """Request one answer. Returns None if the reader says that it knows none, if every reply is
        malformed, or if the endpoint rejects the request. `sample` is the index of the answer in its
        reading."""
        if check is REVIEW:
            instructions = self.prompts.instructions("review")
            language = language_of([passage.contents for passage in draft.seed.passages])
            case = self.prompts.review_case(draft.question, language)
        else:
            instructions = self.prompts.instructions("reader")
            case = self.prompts.reader_case(draft.question, passages)

        def make_request(attempt: int) -> tuple[dict[str, Any], int]:
            temperature = RETRY_TEMPERATURE if sample or attempt else 0.0
            seed = _SEEDS_PER_SAMPLE * sample + attempt
            model = self.model.model
            body = request_body(model, instructions, case, READER_TOKENS, temperature=temperature, seed=seed)
            return with_own_keys(body, self.model.body, READER_TOKENS)

        return await self.ask(name, make_request, read_reader)
