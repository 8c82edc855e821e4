"""Load on a retrieval server, and what comes back: clients in a closed loop, or questions at a given rate.

A client sends one question at a time, as a trajectory does, to any server with
`POST /retrieve {"queries", "topk", "return_scores"}`. The benchmarks retrieval_server.py and
retrieval_overload.py read this file; it has no command line.
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
from typing import Any, TypeVar

import aiohttp

QUESTIONS = Path(__file__).resolve().parents[2] / "shared" / "data" / "qa" / "hotpotqa.jsonl"
WARM_UP_S = 2.0
Made = TypeVar("Made")


@dataclass
class Round:
    """One server under load for one round."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)  # seconds, for answers with status 200
    errors: Counter = field(default_factory=Counter)  # status or exception name -> requests
    #: Answers whose ids differ from those of the same question asked alone; None: not compared.
    other_ids: int | None = 0

    @property
    def qps(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share of the answers arrived; nan without answers."""
        if not self.latencies:
            return float("nan")
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def read_questions(path: Path) -> list[str]:
    """The `question` of each JSONL row, or each line of a text file."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [json.loads(line)["question"] for line in lines] if path.suffix == ".jsonl" else lines


class Target:
    """One server, its connections, and its answer to each question asked alone."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession, topk: int):
        base = url.rstrip("/")
        self.name = name
        self._url = base if base.endswith("/retrieve") else f"{base}/retrieve"
        self._session, self._topk = session, topk
        self.alone: dict[str, list[str]] = {}

    async def ask(self, question: str) -> list[str]:
        """The ids found. Raises aiohttp.ClientError, also for a status other than 200."""
        body = {"queries": [question], "topk": self._topk, "return_scores": True}
        async with self._session.post(self._url, json=body) as response:
            response.raise_for_status()
            (hits,) = (await response.json())["result"]
        return [hit["document"]["id"] for hit in hits]

    async def learn(self, questions: list[str]) -> None:
        """Send each question alone, and keep the ids of its answer."""
        for question in questions:
            self.alone[question] = await self.ask(question)

    async def timed(
        self, question: str, due: float, result: Round, until: float = float("inf"), since: float = 0.0
    ) -> None:
        """Ask, and note in `result` what came back, if it came within these two times."""
        taken = Round()
        try:
            ids = await self.ask(question)
        except aiohttp.ClientResponseError as error:
            taken.errors[str(error.status)] += 1
        except Exception as error:  # no connection, no answer in time, an answer that is none
            taken.errors[type(error).__name__] += 1
        else:
            taken.latencies.append(time.perf_counter() - due)
            taken.other_ids += ids != self.alone.get(question, ids)
        if since <= time.perf_counter() <= until:
            result.latencies += taken.latencies
            result.errors += taken.errors
            result.other_ids += taken.other_ids


class Ceiling:
    """Encoder and index without any server, each stage measured alone in a process of its own."""

    def __init__(self, name: str, running: Any, batch: int, questions: int):
        self.name = f"{name}, alone, batches of {batch}"
        self._running, self._batch, self._questions = running, batch, questions

    def round(self) -> Round:
        """All questions once. A question's latency is that of its batch in both stages."""
        seconds = self._running.seconds()
        sizes = [min(self._batch, self._questions - i * self._batch) for i in range(len(seconds))]
        latencies = [each for each, size in zip(seconds, sizes, strict=True) for _ in range(size)]
        return Round(sum(seconds), latencies, other_ids=None)


async def closed_loop(target: Target, questions: Iterator[str], clients: int, seconds: float) -> Round:
    """`clients` that ask again as soon as they have an answer.

    What arrives after the first WARM_UP_S, within `seconds`, is counted, whenever it was asked for: else a
    slow server would be charged for the answers at the end, and not be credited with those at the beginning.
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
    """Questions at exponentially distributed intervals, `rate` per second on average."""
    result, clock = Round(), random.Random(0)
    # Those under way. With all that ever were, a million after ten minutes, each of Python's collections of
    # garbage would stop this process for seconds, which would be charged to the server.
    tasks: set[asyncio.Task] = set()
    started = due = time.perf_counter()
    while due < started + seconds:
        await asyncio.sleep(due - time.perf_counter())
        task = asyncio.create_task(target.timed(next(questions), due, result))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += clock.expovariate(rate)
    await asyncio.gather(*tasks)
    result.seconds = time.perf_counter() - started
    return result


def run(work: Coroutine[Any, Any, Made]) -> Made:
    """asyncio.run, with uvloop if installed, so that generating the load costs the machine little."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
