"""Throughput and latency of retrieval servers. Any server with
``POST /retrieve {"queries", "topk", "return_scores"}`` can be measured, and several can be compared.

    python retrieval_server/start_retrieval.py --index indexes/wiki --port 8000 --cache-size 0 &
    python benchmarks/one_by_one_server.py     --index indexes/wiki --port 8001 &
    python benchmarks/retrieval_server.py --url http://127.0.0.1:8000 --url http://127.0.0.1:8001 --clients 64
    python benchmarks/retrieval_server.py --url http://127.0.0.1:8000 --ceiling indexes/wiki

A client sends one question at a time, as a trajectory does. Closed loop (the default): each of ``--clients``
sends the next question as soon as it has an answer. Open loop (``--rate``): questions arrive at random times
at that rate, whether the server keeps up or not, and latency counts from the time at which a question was
due.

``--ceiling`` measures the index's encoder and FAISS in this process, without a server: all questions in
batches of the number of clients; with one client, each question is encoded and then searched on its own.

All targets are measured in turn, ``--rounds`` times, and medians are reported, so that other work on the
machine affects all of them. First every question is asked once on its own; answers under load must then have
the same ids, and the ids of the servers are compared. Questions repeat, so turn off a server's cache unless
you want to measure it. The clients run on this machine and use its cores as little as possible.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

_here = Path(__file__).resolve().parent
QUESTIONS = _here.parents[1] / "shared" / "data" / "qa" / "hotpotqa.jsonl"
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
    """The ``question`` of each JSONL row, or each line of a text file."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [json.loads(line)["question"] for line in lines] if path.suffix == ".jsonl" else lines


class Target:
    """One server, its connections, and its answer to each question asked alone."""

    def __init__(self, url: str, session: aiohttp.ClientSession, topk: int):
        base = url.rstrip("/")
        self.name = url
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
        """Ask each question alone and remember its ids."""
        for question in questions:
            self.alone[question] = await self.ask(question)

    async def timed(self, question: str, due: float, result: Round) -> None:
        try:
            ids = await self.ask(question)
        except aiohttp.ClientResponseError as error:
            result.errors[str(error.status)] += 1
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            result.errors[type(error).__name__] += 1
        else:
            result.latencies.append(time.perf_counter() - due)
            result.other_ids += ids != self.alone.get(question, ids)


async def closed_loop(target: Target, questions: Iterator[str], clients: int, seconds: float) -> Round:
    """``clients`` that ask again as soon as they have an answer. The first WARM_UP_S are not counted."""
    warm_up, result = Round(), Round()
    started = time.perf_counter() + WARM_UP_S
    end = started + seconds

    async def client() -> None:
        while (now := time.perf_counter()) < end:
            await target.timed(next(questions), now, result if now >= started else warm_up)

    await asyncio.gather(*(client() for _ in range(clients)))
    result.seconds = time.perf_counter() - started
    return result


async def open_loop(target: Target, questions: Iterator[str], rate: float, seconds: float) -> Round:
    """Questions at exponentially distributed intervals, ``rate`` per second on average."""
    result, tasks, clock = Round(), [], random.Random(0)
    started = due = time.perf_counter()
    while due < started + seconds:
        await asyncio.sleep(due - time.perf_counter())
        tasks.append(asyncio.create_task(target.timed(next(questions), due, result)))
        due += clock.expovariate(rate)
    await asyncio.gather(*tasks)
    result.seconds = time.perf_counter() - started
    return result


class InProcess:
    """The encoder and the FAISS index of a folder, without queue, HTTP or documents."""

    def __init__(self, folder: Path, batch: int, topk: int):
        sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]
        import faiss

        from retrieval_server.encode.encoder import Encoder
        from retrieval_server.folder.manifest import FAISS_INDEX, read_manifest
        from retrieval_server.search import faiss_search  # noqa: F401  (sets FAISS as our server does)

        manifest = read_manifest(folder)
        if manifest.dense is None:
            raise SystemExit(f"error: {folder} is a {manifest.backend} index; give a dense one")
        self.name = f"in process, batches of {batch}"
        self._encoder = Encoder.open(manifest.dense.encoder)
        self._index = faiss.read_index(str(folder / FAISS_INDEX))
        self._batch, self._topk = batch, topk

    def round(self, questions: list[str]) -> Round:
        """Search all questions once. A question's latency is its own if searched alone, else its batch's
        average."""
        texts = [self._encoder.section.query_prefix + question for question in questions]
        if self._batch == 1:
            latencies = [self._timed([text]) for text in texts]
            return Round(sum(latencies), latencies, other_ids=None)
        seconds = self._timed(texts)
        return Round(seconds, [seconds * self._batch / len(texts)] * len(texts), other_ids=None)

    def _timed(self, texts: list[str]) -> float:
        started = time.perf_counter()
        # Sorted by length and padded to the longest of a batch: faster than in order of arrival.
        vectors = self._encoder.encode_together(texts, self._batch)
        for first in range(0, len(vectors), self._batch):
            self._index.search(vectors[first : first + self._batch], self._topk)
        return time.perf_counter() - started


def line(name: str, rounds: list[Round]) -> str:
    """A server's row: medians over its rounds; errors and different ids summed over all of them."""

    def middle(values: list[float]) -> float:
        return statistics.median(values)

    errors = sum((one.errors for one in rounds), Counter())
    answers = sum(len(one.latencies) for one in rounds)
    shares = [f"{middle([one.percentile(share) for one in rounds]):8.1f}" for share in (0.5, 0.95, 0.99)]
    spread = f"{min(one.qps for one in rounds):.1f}-{max(one.qps for one in rounds):.1f}"
    problems = ", ".join(f"{number} x {kind}" for kind, number in errors.most_common()) or "none"
    row = f"{name:<32} {middle([one.qps for one in rounds]):8.1f} {spread:>15} {' '.join(shares)}"
    compared = [one.other_ids for one in rounds if one.other_ids is not None]
    if not compared:
        return row
    return f"{row}   errors {problems}; {sum(compared)} of {answers} answers differ from those asked alone"


async def measure(args: argparse.Namespace, questions: list[str]) -> dict[str, list[Round]]:
    """Alternating rounds against every server, and in this process with --ceiling; prints each result."""
    in_process: InProcess | None = None
    if args.ceiling is not None:
        in_process = InProcess(args.ceiling, args.batch or args.clients, args.topk)
        in_process.round(questions[: 2 * (args.batch or args.clients)])  # warm
    connections = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=args.timeout)
    async with aiohttp.ClientSession(connector=connections, timeout=timeout) as session:
        targets = [Target(url, session, args.topk) for url in args.url]
        for target in targets:
            try:
                await target.learn(questions)
            except (
                aiohttp.ClientError,
                asyncio.TimeoutError,
                OSError,
                ValueError,
                KeyError,
                TypeError,
            ) as error:
                raise SystemExit(
                    f"error: {target.name} does not answer as a retrieval server ({error!r})"
                ) from None
        for other in targets[1:]:
            same = sum(targets[0].alone[question] == other.alone[question] for question in questions)
            print(
                f"the same ids from {targets[0].name} and {other.name}: {same} of {len(questions)} questions"
            )
        order = random.Random(0).sample(questions, len(questions))
        every: list[Target | InProcess] = [*targets, *([in_process] if in_process else [])]
        results: dict[str, list[Round]] = {one.name: [] for one in every}
        for number, target in itertools.product(range(args.rounds), every):
            endless = itertools.cycle(order)
            if isinstance(target, InProcess):
                result = target.round(order)
            elif args.rate:
                result = await open_loop(target, endless, args.rate, args.seconds)
            else:
                result = await closed_loop(target, endless, args.clients, args.seconds)
            results[target.name].append(result)
            print(f"  round {number + 1} {target.name}: {result.qps:.1f} queries/s", flush=True)
    return results


def report(args: argparse.Namespace, results: dict[str, list[Round]]) -> None:
    load = f"open loop, {args.rate:g} per second" if args.rate else f"closed loop, {args.clients} clients"
    print(f"\n{load}, {args.rounds} rounds of {args.seconds:g} s, medians; latency in milliseconds")
    print(f"{'server':<32} {'q/s':>8} {'(min-max)':>15} {'p50':>8} {'p95':>8} {'p99':>8}")
    for name, rounds in results.items():
        print(line(name, rounds))
    (first, mine), *others = results.items()
    for name, rounds in others:
        qps = statistics.median(one.qps for one in mine) / statistics.median(one.qps for one in rounds)
        p50, p95 = (
            statistics.median(one.percentile(share) for one in mine)
            / statistics.median(one.percentile(share) for one in rounds)
            for share in (0.5, 0.95)
        )
        print(
            f"{first} / {name}: {qps:.2f} x the queries per second, {p50:.2f} x the p50, {p95:.2f} x the p95"
        )


def run(work: Coroutine[Any, Any, Made]) -> Made:
    """asyncio.run, with uvloop if installed, so that generating the load costs the machine little."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url", action="append", default=[], help="URL of a server; repeat to compare several"
    )
    parser.add_argument(
        "--ceiling", type=Path, metavar="INDEX", help="also measure this dense index in process"
    )
    parser.add_argument(
        "--clients", type=int, default=64, help="clients of the closed loop (default %(default)s)"
    )
    parser.add_argument("--rate", type=float, metavar="PER_S", help="open loop at this rate instead")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="duration of a round (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds per server (default %(default)s)")
    parser.add_argument("--topk", type=int, default=3, help="(default %(default)s)")
    parser.add_argument("--batch", type=int, help="batch size of --ceiling (default: --clients)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        help="time limit of a request in seconds (default %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round into this file")
    parser.add_argument(
        "--questions",
        type=Path,
        default=QUESTIONS,
        metavar="FILE",
        help="JSONL with 'question', or text with one per line (default ../shared/data/qa/hotpotqa.jsonl)",
    )
    args = parser.parse_args(argv)
    if not args.url and args.ceiling is None:
        parser.error("give at least one --url, or --ceiling INDEX")
    if min(args.clients, args.rounds, args.topk, args.batch or 1) < 1 or args.seconds <= 0:
        parser.error("--clients, --rounds, --topk, --batch and --seconds must be above 0")
    if args.rate is not None and not args.rate > 0:
        parser.error("--rate must be above 0")
    if not args.questions.is_file():
        parser.error(f"{args.questions}: no such file; give your questions with --questions FILE")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    questions = list(dict.fromkeys(read_questions(args.questions)))
    results = run(measure(args, questions))
    report(args, results)
    if args.json is not None:
        rows = {name: [asdict(one) for one in rounds] for name, rounds in results.items()}
        args.json.write_text(json.dumps(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
