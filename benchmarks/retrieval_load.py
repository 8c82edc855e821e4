"""Puts a retrieval server under load, with clients in a closed loop or with questions at a given rate.

A client sends one question at a time, as a trajectory does, to any server with
`POST /retrieve {"queries", "topk", "return_scores"}`. The result of each round has latencies, errors, and the
number of responses that differ from those without load. The benchmarks retrieval_server.py and
retrieval_overload.py load this file; it has no command line.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp

QUESTIONS = Path(__file__).resolve().parents[2] / "shared" / "data" / "qa" / "hotpotqa.jsonl"
#: Seconds at the beginning of a closed loop whose responses are not counted.
WARM_UP_S = 2.0
Result = TypeVar("Result")


@dataclass
class Round:
    """The result of one server under load for one round."""

    seconds: float = 0.0
    #: Seconds of each response with status 200.
    latencies: list[float] = field(default_factory=list)
    #: Status or name of the exception -> number of requests.
    errors: Counter = field(default_factory=Counter)
    #: Number of responses whose ids differ from those for the question alone; None if they were not compared.
    other_ids: int | None = 0

    @property
    def qps(self) -> float:
        """The responses per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """Return the milliseconds within which this share of the responses arrived; nan if there are none."""
        if not self.latencies:
            return float("nan")
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def read_questions(path: Path) -> list[str]:
    """Read the `question` of each JSONL row, or each line of a text file.

    Raises SystemExit if there is no question.
    """
    with path.open(encoding="utf-8") as file:  # `splitlines` would also split at U+2028, which JSON may have
        lines = [line.strip() for line in file if line.strip()]
    if not lines:
        raise SystemExit(f"error: {path} has no question: give your questions with --questions FILE")
    return [json.loads(line)["question"] for line in lines] if path.suffix == ".jsonl" else lines


class Target:
    """A server with its connections, and its response to each question that is sent alone."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession, topk: int):
        base = url.rstrip("/")
        self.name = name
        self._url = base if base.endswith("/retrieve") else f"{base}/retrieve"
        self._session, self._topk = session, topk
        self.alone: dict[str, list[str]] = {}

    async def ask(self, question: str) -> list[str]:
        """Send a question, and return the ids of its passages.

        Raises aiohttp.ClientError or TimeoutError without a response of status 200, and ValueError, KeyError
        or TypeError for a response of another form.
        """
        body = {"queries": [question], "topk": self._topk, "return_scores": True}
        async with self._session.post(self._url, json=body) as response:
            response.raise_for_status()
            (hits,) = (await response.json())["result"]
        return [hit["document"]["id"] for hit in hits]

    async def learn(self, questions: list[str]) -> None:
        """Send each question alone, and keep the ids of the response. Raises the same errors as `ask`."""
        for question in questions:
            self.alone[question] = await self.ask(question)

    async def timed(
        self, question: str, due: float, result: Round, until: float = float("inf"), since: float = 0.0
    ) -> None:
        """Send a question, and record the response or its error in `result`.

        The latency counts from `due`. Only what arrives from `since` to `until` is recorded. All three are
        times of `time.perf_counter`.
        """
        outcome = Round()
        try:
            ids = await self.ask(question)
        except aiohttp.ClientResponseError as error:
            outcome.errors[str(error.status)] += 1
        except Exception as error:  # no connection, a timeout, or an invalid response
            outcome.errors[type(error).__name__] += 1
        else:
            outcome.latencies.append(time.perf_counter() - due)
            outcome.other_ids += ids != self.alone.get(question, ids)
        if since <= time.perf_counter() <= until:
            result.latencies += outcome.latencies
            result.errors += outcome.errors
            result.other_ids += outcome.other_ids


class TimedStages(Protocol):
    """The stages of a ceiling, as retrieval_processes.py starts them."""

    def seconds(self) -> list[float]:
        """Process all questions once, and return the seconds of each batch in all stages."""


class Ceiling:
    """Encoder and index without a server, with each stage measured alone in a separate process."""

    def __init__(self, name: str, stages: TimedStages, batch: int, questions: int):
        """`batch` is the number of questions in a batch, and `questions` that of all questions."""
        self.name = f"{name}, alone, batches of {batch}"
        self._stages, self._batch, self._questions = stages, batch, questions

    def round(self) -> Round:
        """Process all questions once. The latency of a question is that of its batch in both stages."""
        seconds = self._stages.seconds()
        sizes = [min(self._batch, self._questions - i * self._batch) for i in range(len(seconds))]
        latencies = [each for each, size in zip(seconds, sizes, strict=True) for _ in range(size)]
        return Round(sum(seconds), latencies, other_ids=None)


async def closed_loop(target: Target, questions: Iterator[str], clients: int, seconds: float) -> Round:
    """Run `clients` that send the next question as soon as they have a response.

    All responses that arrive within `seconds` after the first WARM_UP_S are counted, whenever they were
    requested. Otherwise a slow server would lose the responses at the end without getting those at the
    beginning.
    """
    result = Round(seconds)
    started = time.perf_counter() + WARM_UP_S
    end = started + seconds

    async def client() -> None:
        while (now := time.perf_counter()) < end:
            await target.timed(next(questions), now, result, until=end, since=started)

    await asyncio.gather(*(client() for _ in range(clients)))
    return result


async def open_loop(target: Target, questions: Iterator[str], rate: float, seconds: float) -> Round:
    """Send questions for `seconds` at exponentially distributed intervals, `rate` per second on average.

    The result has all responses and errors, and its seconds last until the last of them.
    """
    result, intervals = Round(), random.Random(0)
    # Only unfinished tasks are kept. If all were, Python's garbage collection would stop this process for
    # seconds after some minutes, and the server would be charged for it.
    tasks: set[asyncio.Task] = set()
    started = due = time.perf_counter()
    while due < started + seconds:
        await asyncio.sleep(due - time.perf_counter())
        task = asyncio.create_task(target.timed(next(questions), due, result))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += intervals.expovariate(rate)
    await asyncio.gather(*tasks)
    result.seconds = time.perf_counter() - started
    return result


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine and return its result; uvloop, if it is installed, makes the load cost less."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
