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

``--anchor search-r1 PATH --index DIR`` starts two servers and stops them at the end: ours, and the original,
Search-R1's ``search_r1/search/retrieval_server.py``, on the same index and encoder. PATH is a clone of
https://github.com/PeterGriffinJin/Search-R1 or that file alone; it is run as it is, and nothing of it is part
of this project (benchmarks/search_r1_server.py says what is changed around it):

    python benchmarks/retrieval_server.py --anchor search-r1 Search-R1 --index DIR --ceiling DIR

``--ceiling`` measures the index's encoder and its search without a server, each alone in a process of its own
(benchmarks/retrieval_stages.py), and adds up the two: all questions in batches of the number of clients, with
one client one by one.

All targets are measured in turn, ``--rounds`` times, and medians are reported, so that other work on the
machine affects all of them. First every question is asked once on its own; answers under load must then have
the same ids, and the ids of the servers are compared. Questions repeat, so turn off a server's cache unless
you want to measure it. The clients run on this machine and use its cores as little as possible.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import aiohttp

_here = Path(__file__).resolve().parent
# By its path: this file has the name of a package, so its folder must not be where packages are looked for.
_spec = importlib.util.spec_from_file_location("retrieval_processes", _here / "retrieval_processes.py")
assert _spec is not None and _spec.loader is not None
processes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(processes)
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


class Ceiling:
    """Encoder and index without any server, each stage measured alone in a process of its own."""

    def __init__(self, running: Any, batch: int, questions: int):
        self.name = f"ceiling: stages alone, batches of {batch}"
        self._running, self._batch, self._questions = running, batch, questions

    def round(self) -> Round:
        """All questions once. A question's latency is that of its batch in both stages."""
        seconds = self._running.seconds()
        sizes = [min(self._batch, self._questions - i * self._batch) for i in range(len(seconds))]
        latencies = [each for each, size in zip(seconds, sizes, strict=True) for _ in range(size)]
        return Round(sum(seconds), latencies, other_ids=None)


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


async def measure(
    args: argparse.Namespace, questions: list[str], urls: list[str], ceiling: Ceiling | None
) -> dict[str, list[Round]]:
    """Alternating rounds against every server, and of the ceiling if there is one; prints each result."""
    connections = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=args.timeout)
    async with aiohttp.ClientSession(connector=connections, timeout=timeout) as session:
        targets = [Target(url, session, args.topk) for url in urls]
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
        every: list[Target | Ceiling] = [*targets, *([ceiling] if ceiling else [])]
        results: dict[str, list[Round]] = {one.name: [] for one in every}
        for number, target in itertools.product(range(args.rounds), every):
            endless = itertools.cycle(order)
            if isinstance(target, Ceiling):
                result = target.round()
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
        "--anchor",
        nargs=2,
        metavar=("search-r1", "PATH"),
        help="also start the original's server from this checkout or file, and ours, on --index",
    )
    parser.add_argument("--index", type=Path, metavar="DIR", help="the dense index of --anchor")
    parser.add_argument("--device", help="of the encoders of --anchor and --ceiling (default: a GPU if any)")
    parser.add_argument(
        "--ceiling", type=Path, metavar="INDEX", help="also measure the stages of this dense index alone"
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
    if not args.url and args.ceiling is None and args.anchor is None:
        parser.error("give at least one --url, --anchor search-r1 PATH, or --ceiling INDEX")
    if args.anchor is not None and args.anchor[0] != "search-r1":
        parser.error(f"--anchor {args.anchor[0]}: the only anchor is search-r1")
    if (args.anchor is None) != (args.index is None):
        parser.error("--anchor and --index belong together: the original and ours serve the same index")
    if args.anchor is not None and not Path(args.anchor[1]).exists():
        parser.error(f"--anchor search-r1 {args.anchor[1]}: no such file or folder; clone Search-R1 there")
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
    with ExitStack() as open_now:
        urls, ceiling = list(args.url), None
        if args.anchor is not None:
            pair = processes.anchored(Path(args.anchor[1]), args.index, args.device)
            urls = [*open_now.enter_context(pair), *urls]
            print(f"ours: {urls[0]}, Search-R1's: {urls[1]}", flush=True)
        if args.ceiling is not None:
            batch = args.batch or args.clients
            work = Path(open_now.enter_context(TemporaryDirectory(prefix="ceiling-")))
            stages = processes.stages(args.ceiling, questions, batch, args.topk, work, args.device)
            ceiling = Ceiling(open_now.enter_context(stages), batch, len(questions))
        results = run(measure(args, questions, urls, ceiling))
    report(args, results)
    if args.json is not None:
        rows = {name: [asdict(one) for one in rounds] for name, rounds in results.items()}
        args.json.write_text(json.dumps(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
