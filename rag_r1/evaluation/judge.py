"""Judges answers with a language model, in addition to EM and F1.

Exact match misses paraphrases. The judge gets the question, the accepted answers and the policy's answer, and
replies with one word, `correct` or `incorrect`. Each distinct triple gets one reply, which is cached in the
run's folder (rag_r1/runs/response_cache.py), so neither a resumed run nor a second sample with the same
answer costs anything. An episode without an answer is wrong, without a request to the judge. A reply that is
neither word is no verdict: it is counted, and its value is None. A request that failed is repeated by the
next run of the command.

The three texts are untrusted data. They are sent as JSON, and the judge is told to ignore instructions in
them (rag_r1/inference/judging.py). A policy that is trained on such verdicts can still learn to persuade the
judge, so an evaluation should use another model than the one whose verdicts were the reward
(rag_r1/rewards/terms/judged.py).

The judge of a retriever's training data (rag_r1/retriever/data/judge.py) has the same endpoint and requests,
`judge_endpoint` and `judge_request`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.evaluation.eval_arguments import PolicyArguments
from rag_r1.evaluation.judge_arguments import JudgeArguments
from rag_r1.inference.chat_completions_api import PATH, read_chat
from rag_r1.inference.client import Endpoint, EngineFailure
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.inference.episode_client import EpisodeClient, with_own_keys
from rag_r1.inference.judging import ACCURACY_PROMPT, VERDICTS, answer_case, read_verdict, request_body
from rag_r1.inference.rate_limit import RateLimiter
from rag_r1.rollouts.arguments import EndpointArguments
from rag_r1.rollouts.concurrency import JobPool
from rag_r1.rollouts.engine_factory import endpoint_options
from rag_r1.rollouts.server_check import ModelServer, check_replies
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.runs.response_cache import ResponseCache

#: The name of the judge's value among a record's reward terms.
JUDGE_TERM = "judge"
#: The folder of the judge's replies, in a run's folder.
JUDGE_FOLDER = "judge"
#: Token limit of a reply, unless --judge-body sets another one.
_MAX_TOKENS = 16


def check_judge(args: PolicyArguments) -> None:
    """Raise RunError if no judge answers at --judge-url, or if that server lacks the judge's model. A judge
    behind a proxy (--trust-env) is not checked, since this machine may not reach the server itself."""
    if args.judge_url is not None and not args.trust_env:
        flags = {"name": "judge", "flag": "--judge-url", "model_flag": "--judge-model"}
        check_replies(ModelServer(args.judge_url, args.judge_api_key_env, args.judge_model, **flags))


@dataclass(frozen=True)
class JudgeCase:
    """An answer that is to be judged."""

    question: str
    #: The accepted answers.
    golds: tuple[str, ...]
    answer: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> JudgeCase | None:
        """Return the case of a record; None if its episode has failed or has no answer."""
        if record["right"] is None or not record["answer"]:
            return None
        return cls(record["question"], tuple(record["golds"]), record["answer"])

    @property
    def key(self) -> str:
        """A hash of the three texts, which identifies the case."""
        text = json.dumps([self.question, self.golds, self.answer])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class JudgeVerdicts:
    """The judge's verdicts on the answers of a run."""

    #: By the key of the case: 1 for correct, 0 for incorrect, None without a verdict.
    values: dict[str, float | None] = field(default_factory=dict)
    #: Numbers of cases: `distinct` (all of them), `correct`, `incorrect`, `no_verdict` (the reply was neither
    #: word) and `unanswered` (the request failed). Cases that a stopped judge missed are `distinct` only.
    counts: Counter[str] = field(default_factory=Counter)
    #: The cost of all replies, cached ones included, in the currency of --judge-price-in and -out.
    cost: float = 0.0
    #: The reason for which the judge was stopped before the last case; None if it was not.
    stopped: str | None = None

    def add_to_record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the record with the judge's term: its verdict, 0 without an answer, None if it failed."""
        if (case := JudgeCase.of(record)) is not None:
            value = self.values.get(case.key)
        else:
            value = None if record["right"] is None else 0.0
        return {**record, "rewards": {**record["rewards"], JUDGE_TERM: value}}

    def summary(self) -> str:
        """Return a line with the numbers of verdicts and the cost."""
        counts = self.counts
        line = f"judge: {counts['distinct']:,} distinct answers, {counts['correct']:,} correct"
        for name, text in (("no_verdict", "without a verdict"), ("unanswered", "without a reply")):
            if counts[name]:
                line += f", {counts[name]:,} {text}"
        return line + (f", cost {self.cost:.4g}" if self.cost else "")


def description(args: JudgeArguments) -> dict[str, Any]:
    """Return the judge's part of a run's provenance; empty without a judge."""
    if args.judge_model is None:
        return {}
    prompt_hash = hashlib.sha256(ACCURACY_PROMPT.encode()).hexdigest()
    return {"model": args.judge_model, "prompt_sha256": prompt_hash, "body": json.loads(args.judge_body)}


async def judge(
    args: JudgeArguments, records: Iterable[Mapping[str, Any]], folder: Path, connection: EndpointArguments
) -> JudgeVerdicts:
    """Return the judge's verdicts on all records. Replies are cached in `folder`, which only one process may
    use at a time. The retries, the time-out and the proxy are those of `connection`. Raises RunError, and
    OSError if the cache cannot be opened or written."""
    cases = {case.key: case for record in records if (case := JudgeCase.of(record)) is not None}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    verdicts = JudgeVerdicts()
    cache = ResponseCache.open(folder)
    try:
        async with judge_endpoint(args, cache, connection) as endpoint:
            pool = JobPool(args.judge_in_flight, endpoint.stop, endpoint.idle)
            jobs = (partial(_judge_case, args, case, endpoint, cache, verdicts) for case in cases.values())
            await pool.run(jobs, len(cases), "verdict")
    finally:
        cache.close()
    verdicts.cost = endpoint.spending.cost
    verdicts.stopped = endpoint.stop.reason
    verdicts.counts["distinct"] = len(cases)
    return verdicts


@asynccontextmanager
async def judge_endpoint(
    args: JudgeArguments, cache: ResponseCache, connection: EndpointArguments
) -> AsyncIterator[Endpoint]:
    """Yield the judge's endpoint, and close it after the block. The tokens of cached replies count toward
    its cost limit. The retries, the time-out and the proxy are those of `connection`. Raises RunError."""
    assert args.judge_url is not None  # callers check that there is a judge
    stop = CancelToken()
    options = endpoint_options(connection, args.judge_url, args.judge_api_key_env)
    options = replace(options, in_flight=args.judge_in_flight)
    spending = CostTracker(stop, args.judge_price_in, args.judge_price_out, args.judge_max_cost, cache.usage)
    endpoint = Endpoint(options, stop, spending, RateLimiter(args.judge_rpm))
    try:
        yield endpoint
    finally:
        await endpoint.close()


def judge_request(
    args: JudgeArguments, instructions: str, case: Mapping[str, Any], max_tokens: int, **extra_keys: Any
) -> tuple[dict[str, Any], int]:
    """Return the body of a request about a case, and the token limit of its reply: `max_tokens`, unless
    --judge-body sets another one. `extra_keys` are further keys of the body."""
    # 0.0 rather than 0, because the caches of earlier runs find a reply by the bytes of its request.
    extra_keys = {"temperature": 0.0, **extra_keys}
    body = request_body(args.judge_model, instructions, case, max_tokens, **extra_keys)
    return with_own_keys(body, json.loads(args.judge_body), max_tokens)


async def _judge_case(
    args: JudgeArguments, case: JudgeCase, endpoint: Endpoint, cache: ResponseCache, verdicts: JudgeVerdicts
) -> None:
    """Send one case to the judge, and add the verdict to `verdicts`."""
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
