"""A language model as a judge of answers, beside EM and F1.

Exact match misses paraphrases. The judge gets the question, the accepted answers and the given answer, and
replies with one word, `correct` or `incorrect`. Each distinct triple is asked about once: replies are kept in
the run's folder (rag_r1/runs/response_cache.py), so neither a resumed run nor a second sample with the same
answer pays again. An episode without an answer is wrong without asking. Any other reply than the two words is
no value: it is counted and not guessed at. So is a request that fails; the next start sends it again.

The three texts are data. They are sent as JSON, and the judge is told to ignore instructions in them; but a
policy that is trained on such a verdict can still learn to persuade. So judge with another model than the
one whose verdict was the reward (rag_r1/rewards/terms/judged.py, which has the wording).
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
from rag_r1.inference.chat import PATH, read_chat
from rag_r1.inference.client import Endpoint, EndpointOptions, EngineFailure
from rag_r1.inference.cost_limit import CostTracker
from rag_r1.inference.episode_client import EpisodeClient, merge_body
from rag_r1.inference.judging import judge_messages, verdict_word
from rag_r1.inference.rate_limit import CancelToken, RateLimiter
from rag_r1.rewards.terms.judged import ACCURACY_PROMPT, VERDICTS
from rag_r1.rollouts.concurrency import JobPool
from rag_r1.runs.json_lines import JsonLinesFile
from rag_r1.runs.response_cache import ResponseCache

#: The name of its figure among the terms of a record.
TERM = "judge"
#: Tokens of a reply, unless --judge-body says otherwise.
_MOST_TOKENS = 16


@dataclass(frozen=True)
class JudgeCase:
    """What is judged: one answer to one question."""

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
    """What the judge said, by case. `no_verdict`: replies that are neither word; `unanswered`: cases without
    a reply; `stopped`: why the judge is not asked any more."""

    of: dict[str, float | None] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    cost: float = 0.0
    stopped: str | None = None

    def add_to_record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record with the judge's term; without a value if the episode has failed."""
        case = JudgeCase.of(record)
        value = self.of.get(case.key) if case else None if record["right"] is None else 0.0
        return {**record, "rewards": {**record["rewards"], TERM: value}}

    def told(self) -> str:
        """A line about the judge."""
        counts = self.counts
        line = f"judge: {counts['asked']:,} distinct answers, {counts['correct']:,} correct"
        for name, what in (("no_verdict", "without a verdict"), ("unanswered", "without a reply")):
            if counts[name]:
                line += f", {counts[name]:,} {what}"
        return line + (f", cost {self.cost:.4g}" if self.cost else "")


def description(args: JudgeArguments) -> dict[str, Any]:
    """The judge as the card has it; empty without one."""
    if args.judge_model is None:
        return {}
    prompt = hashlib.sha256(ACCURACY_PROMPT.encode()).hexdigest()
    return {"model": args.judge_model, "prompt_sha256": prompt, "body": json.loads(args.judge_body)}


async def judge(
    args: JudgeArguments,
    records: Iterable[Mapping[str, Any]],
    folder: Path,
    *,
    retries: int = 6,
    timeout_s: float = 300.0,
    backoff_s: float = 1.0,
    trust_env: bool = False,
) -> JudgeVerdicts:
    """The verdicts on all records. `folder`: where replies are kept; it belongs to one process at a time.
    Raises RunError."""
    cases = {case.key: case for record in records if (case := JudgeCase.of(record)) is not None}
    verdicts, tape = JudgeVerdicts(), ResponseCache()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tape.lines = lines = JsonLinesFile(folder / "exchanges.ndjson", tape.index)
    ways = {"retries": retries, "timeout_s": timeout_s, "backoff_s": backoff_s, "trust_env": trust_env}
    try:
        async with judge_endpoint(args, tape, **ways) as endpoint:
            pool = JobPool(args.judge_in_flight, endpoint.stop, endpoint.idle)
            jobs = (partial(_ask, args, case, endpoint, tape, verdicts) for case in cases.values())
            await pool.run(jobs, len(cases), "verdict")
    finally:
        lines.close()
    verdicts.cost, verdicts.stopped = endpoint.spending.cost, endpoint.stop.reason
    verdicts.counts["asked"] = len(cases)
    return verdicts


@asynccontextmanager
async def judge_endpoint(
    args: JudgeArguments,
    tape: ResponseCache,
    *,
    retries: int = 6,
    timeout_s: float = 300.0,
    backoff_s: float = 1.0,
    trust_env: bool = False,
) -> AsyncIterator[Endpoint]:
    """The judge's endpoint while the block runs. Cached responses count as spent. Raises RunError."""
    assert args.judge_url is not None
    stop = CancelToken()
    options = EndpointOptions(
        url=args.judge_url,
        key_variable=args.judge_api_key_env,
        timeout_s=timeout_s,
        retries=retries,
        backoff_s=backoff_s,
        in_flight=args.judge_in_flight,
        trust_env=trust_env,
    )
    spending = CostTracker(stop, args.judge_price_in, args.judge_price_out, args.judge_max_cost, tape.usage)
    endpoint = Endpoint(options, stop, spending, RateLimiter(args.judge_rpm))
    try:
        yield endpoint
    finally:
        await endpoint.close()


def judge_request(
    args: JudgeArguments, instructions: str, case: Mapping[str, Any], most_tokens: int, **more: Any
) -> tuple[dict[str, Any], int]:
    """The body of a request about a case, and how many tokens its reply may have: `most_tokens`, unless
    --judge-body says otherwise. `more`: further keys."""
    body = {
        "model": args.judge_model,
        "messages": judge_messages(instructions, case),
        "temperature": 0.0,
        "max_tokens": most_tokens,
        **more,
    }
    body = merge_body(body, json.loads(args.judge_body))
    limits = (body.get(name) for name in ("max_tokens", "max_completion_tokens"))
    return body, next((limit for limit in limits if isinstance(limit, int)), most_tokens)


def verdict_of(reply: str) -> float | None:
    """1 or 0 for a reply of one of the two words, with or without a full stop; None for any other."""
    return VERDICTS.get(verdict_word(reply))


async def _ask(
    args: JudgeArguments, case: JudgeCase, endpoint: Endpoint, tape: ResponseCache, verdicts: JudgeVerdicts
) -> None:
    shown = {"question": case.question, "accepted_answers": case.golds, "given_answer": case.answer}
    body, most = judge_request(args, ACCURACY_PROMPT, shown, _MOST_TOKENS)
    try:
        reply = await EpisodeClient(case.key, endpoint, tape).ask(PATH, body, read_chat, most)
    except EngineFailure:
        verdicts.of[case.key] = None
        verdicts.counts["unanswered"] += 1
        return
    value = verdicts.of[case.key] = verdict_of(reply.text)
    verdicts.counts["no_verdict" if value is None else "correct" if value else "incorrect"] += 1
