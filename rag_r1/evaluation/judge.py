"""A language model as a judge of answers, beside EM and F1.

Exact match misses paraphrases. The judge gets the question, the accepted answers and the policy's answer, and
replies with one word, `correct` or `incorrect`. Each distinct triple is asked about once: replies are kept in
the run's folder (rag_r1/runs/response_cache.py), so neither a resumed run nor a second sample with the same
answer pays again. An episode without an answer is wrong without asking. Any other reply than the two words is
no value: it is counted and not guessed at. So is a request that fails; the next start sends it again.

The three texts are data. They are sent as JSON, and the judge is instructed to ignore instructions in them
(rag_r1/inference/judging.py has the wording); but a policy that is trained on such a verdict can still learn
to persuade. So judge with another model than the one whose verdict was the reward
(rag_r1/rewards/terms/judged.py).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.evaluation.judge_arguments import JudgeArguments
from rag_r1.inference.chat_completions_api import PATH, read_chat
from rag_r1.inference.client import Endpoint, EndpointOptions, EngineFailure
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.inference.episode_client import EpisodeClient
from rag_r1.inference.judging import ACCURACY_PROMPT, VERDICTS, answer_case, read_verdict, request_body
from rag_r1.inference.rate_limit import RateLimiter
from rag_r1.inference.strict_replies import with_own_keys
from rag_r1.rollouts.concurrency import JobPool
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.response_cache import ResponseCache

#: The name of its figure among the terms of a record.
TERM = "judge"
#: The folder of its verdicts and requests, in a run's folder.
JUDGE_FOLDER = "judge"
#: Tokens of a reply, unless --judge-body says otherwise.
_MAX_TOKENS = 16


@dataclass(frozen=True)
class JudgeCase:
    """An answer to a question, to be judged."""

    question: str
    golds: tuple[str, ...]
    answer: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> JudgeCase | None:
        """Of a record whose episode has an answer and has not failed."""
        if record["right"] is None or not record["answer"]:
            return None
        return cls(record["question"], tuple(record["golds"]), record["answer"])

    @property
    def key(self) -> str:
        """Equal for equal cases."""
        text = json.dumps([self.question, self.golds, self.answer])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class JudgeVerdicts:
    """The judge's verdicts. `values`: 1, 0 or None by the case's key. In `counts`, `no_verdict` are replies
    that are neither word, and `unanswered` cases without a reply. `stopped`: why the judge is not asked any
    more."""

    values: dict[str, float | None] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    cost: float = 0.0
    stopped: str | None = None

    def add_to_record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record with the judge's term; without a value if the episode has failed."""
        case = JudgeCase.of(record)
        value = self.values.get(case.key) if case else None if record["right"] is None else 0.0
        return {**record, "rewards": {**record["rewards"], TERM: value}}

    def summary(self) -> str:
        """A line about the judge."""
        counts = self.counts
        line = f"judge: {counts['asked']:,} distinct answers, {counts['correct']:,} correct"
        for name, text in (("no_verdict", "without a verdict"), ("unanswered", "without a reply")):
            if counts[name]:
                line += f", {counts[name]:,} {text}"
        return line + (f", cost {self.cost:.4g}" if self.cost else "")


def description(args: JudgeArguments) -> dict[str, Any]:
    """The judge as the card has it; empty without one."""
    if args.judge_model is None:
        return {}
    prompt = hashlib.sha256(ACCURACY_PROMPT.encode()).hexdigest()
    return {"model": args.judge_model, "prompt_sha256": prompt, "body": json.loads(args.judge_body)}


async def judge(
    args: JudgeArguments, records: Iterable[Mapping[str, Any]], folder: Path, **connection: Any
) -> JudgeVerdicts:
    """The verdicts on all records. `folder`: where replies are kept; it belongs to one process at a time.
    `connection`: see `judge_endpoint`. Raises RunError."""
    cases = {case.key: case for record in records if (case := JudgeCase.of(record)) is not None}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    verdicts, cache = JudgeVerdicts(), ResponseCache.open(folder)
    try:
        async with judge_endpoint(args, cache, **connection) as endpoint:
            pool = JobPool(args.judge_in_flight, endpoint.stop, endpoint.idle)
            jobs = (partial(_judge_case, args, case, endpoint, cache, verdicts) for case in cases.values())
            await pool.run(jobs, len(cases), "verdict")
    finally:
        cache.close()
    verdicts.cost, verdicts.stopped = endpoint.spending.cost, endpoint.stop.reason
    verdicts.counts["asked"] = len(cases)
    return verdicts


@asynccontextmanager
async def judge_endpoint(
    args: JudgeArguments, cache: ResponseCache, **connection: Any
) -> AsyncIterator[Endpoint]:
    """The judge's endpoint while the block runs. Cached responses count as spent. `connection`: `retries`,
    `timeout_s`, `backoff_s` and `trust_env` of EndpointOptions. Raises RunError."""
    assert args.judge_url is not None
    stop = CancelToken()
    options = EndpointOptions(
        args.judge_url, args.judge_api_key_env, in_flight=args.judge_in_flight, **connection
    )
    spending = CostTracker(stop, args.judge_price_in, args.judge_price_out, args.judge_max_cost, cache.usage)
    endpoint = Endpoint(options, stop, spending, RateLimiter(args.judge_rpm))
    try:
        yield endpoint
    finally:
        await endpoint.close()


def judge_request(
    args: JudgeArguments, instructions: str, case: Mapping[str, Any], max_tokens: int, **extra_keys: Any
) -> tuple[dict[str, Any], int]:
    """The body of a request about a case, and how many tokens its reply may have: `max_tokens`, unless
    --judge-body says otherwise. `extra_keys`: further keys."""
    # 0.0, not 0: the bytes of a request are its key in the caches of earlier runs.
    extra_keys = {"temperature": 0.0, **extra_keys}
    body = request_body(args.judge_model, instructions, case, max_tokens, **extra_keys)
    return with_own_keys(body, json.loads(args.judge_body), max_tokens)


async def _judge_case(
    args: JudgeArguments, case: JudgeCase, endpoint: Endpoint, cache: ResponseCache, verdicts: JudgeVerdicts
) -> None:
    texts = answer_case(case.question, case.golds, case.answer)
    body, max_tokens = judge_request(args, ACCURACY_PROMPT, texts, _MAX_TOKENS)
    try:
        reply = await EpisodeClient(case.key, endpoint, cache).ask(PATH, body, read_chat, max_tokens)
    except EngineFailure:
        verdicts.values[case.key] = None
        verdicts.counts["unanswered"] += 1
        return
    word = read_verdict(reply.text, VERDICTS)
    verdicts.values[case.key] = None if word is None else VERDICTS[word]
    verdicts.counts[word or "no_verdict"] += 1
