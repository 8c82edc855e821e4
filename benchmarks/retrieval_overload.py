"""Measures how a retrieval server behaves when it gets far more queries than it can answer.

    python retrieval_server/start_retrieval.py --index indexes/wiki --max-delay 1 &
    python benchmarks/retrieval_overload.py --url http://127.0.0.1:8000 --seconds 600

First it measures the capacity: the throughput and the p95 latency with `--clients` clients in a closed loop.
Then questions arrive at `--factor` times that rate, at random times, whether the server keeps up or not. A
good server continues to answer at its capacity, keeps the latency of the accepted queries, and refuses the
rest at once (503 with Retry-After); its memory does not grow. The memory is the server's own metric
process_resident_memory_bytes, read once per second from /metrics.

A number is added to each question, so that all are different and no cache helps. The token of a server that
requires one is read from the variable RETRIEVAL_TOKEN. This process generates the load; if it runs on the
server's machine, leave it a core. With --max-delay S a server accepts the queries that it expects to answer
within S seconds, with a margin for scatter; try a fifth more than the p95 at capacity.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import os
import re
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp

# Loaded by its path: with this folder on the path, its retrieval_server.py would hide the package of that
# name.
_here = Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("retrieval_load", _here / "retrieval_load.py")
assert _spec is not None and _spec.loader is not None
load = sys.modules["retrieval_load"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(load)

_RESIDENT = re.compile(rb"^process_resident_memory_bytes (\S+)", re.MULTILINE)
#: Share of the run, at its beginning and at its end, whose memory is compared.
_END_SHARE = 0.1
#: Growth of the memory between the two, as a share, that still counts as flat.
FLAT = 0.02


def numbered(questions: list[str]) -> Iterator[str]:
    """Yield the questions in an endless cycle, each with a number that makes it unique."""
    return (f"{questions[number % len(questions)]} ({number})" for number in itertools.count())


async def watch_memory(url: str, session: aiohttp.ClientSession, samples: list[float]) -> None:
    """Append the server's resident megabytes to `samples` once per second, if the server reports them."""
    metrics = url.rstrip("/").removesuffix("/retrieve") + "/metrics"
    while True:
        try:
            async with session.get(metrics) as response:
                match = _RESIDENT.search(await response.read())
        except (aiohttp.ClientError, OSError):
            match = None
        if match:
            samples.append(float(match[1]) / 2**20)
        await asyncio.sleep(1)


async def answers_again(target: load.Target) -> bool:
    """Return whether the server answers another question after the overload."""
    for _ in range(30):
        try:
            await target.ask("is anybody there?")
            return True
        except (aiohttp.ClientError, OSError):
            await asyncio.sleep(1)
    return False


async def measure(args: argparse.Namespace, questions: list[str]) -> int:
    """Measure the capacity and then the overload; returns the number of missed criteria.

    Raises SystemExit if the server fails already while its capacity is measured.
    """
    token = os.environ.get("RETRIEVAL_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else None
    connections, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=args.timeout)
    async with aiohttp.ClientSession(connector=connections, timeout=timeout, headers=headers) as session:
        target = load.Target(args.url, args.url, session, args.topk)
        endless = numbered(questions)
        at_capacity = await load.closed_loop(target, endless, args.clients, args.capacity_seconds)
        if at_capacity.errors or not at_capacity.latencies:
            raise SystemExit(
                f"error: {args.url} refuses or fails {args.clients} clients: {dict(at_capacity.errors)}. "
                "With fewer --clients, or a larger --max-delay of the server, there is a capacity to measure."
            )
        speed = f"{at_capacity.qps:.1f} q/s, p95 {at_capacity.percentile(0.95):.0f} ms"
        print(f"capacity, {args.clients} clients: {speed}", flush=True)
        rate = args.factor * at_capacity.qps
        memory: list[float] = []
        watching = asyncio.create_task(watch_memory(args.url, session, memory))
        sent = time.perf_counter()
        overload = await load.open_loop(target, endless, rate, args.seconds)
        watching.cancel()
        print(f"overload, {rate:.0f} per second for {time.perf_counter() - sent:.0f} s:")
        is_alive = await answers_again(target)
    return report(at_capacity, overload, memory, is_alive)


def report(at_capacity: load.Round, overload: load.Round, memory: list[float], is_alive: bool) -> int:
    """Print the four criteria, and return the number of those that were missed.

    `memory` has the server's resident megabytes in the order in which they were read.
    """
    requests = len(overload.latencies) + sum(overload.errors.values())
    refused = overload.errors["503"]
    others = {kind: count for kind, count in overload.errors.items() if kind != "503"}
    p95 = overload.percentile(0.95)
    slowdown = p95 / at_capacity.percentile(0.95)
    end = max(1, int(_END_SHARE * len(memory)))
    first, last = (
        (statistics.median(part) for part in (memory[:end], memory[-end:])) if memory else (0.0, 0.0)
    )
    accepted = f"{overload.qps:.1f} q/s, p95 {p95:.0f} ms, {slowdown:.2f} x that at capacity"
    share = refused / max(1, requests)
    outcomes = f"{len(overload.latencies)} answered, {refused} refused with 503 ({share:.1%})"
    sizes = f"{first:.0f} MB at the beginning, {last:.0f} MB at the end, most {max(memory, default=0):.0f} MB"
    bars = [
        (is_alive, f"the server is alive and answers: {'yes' if is_alive else 'NO'}"),
        (slowdown <= 2, f"accepted: {accepted}"),
        (not others, f"of {requests}: {outcomes}, others {others or 'none'}"),
        (bool(memory) and last <= first * (1 + FLAT), f"memory: {sizes if memory else 'not reported'}"),
    ]
    for is_met, text in bars:
        print(f"  {'ok    ' if is_met else 'MISSED'} {text}")
    return sum(not is_met for is_met, _ in bars)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True, help="the server")
    parser.add_argument(
        "--clients", type=int, default=64, help="clients used to measure the capacity (default %(default)s)"
    )
    parser.add_argument("--capacity-seconds", type=float, default=30.0, help="(default %(default)s)")
    parser.add_argument(
        "--factor",
        type=float,
        default=10.0,
        help="overload as a multiple of the capacity (default %(default)g)",
    )
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="duration of the overload (default %(default)g)"
    )
    parser.add_argument("--topk", type=int, default=3, help="(default %(default)s)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        help="time limit of a request in seconds (default %(default)g)",
    )
    parser.add_argument(
        "--questions",
        type=Path,
        default=load.QUESTIONS,
        metavar="FILE",
        help="JSONL with 'question', or text with one per line (default ../shared/data/qa/hotpotqa.jsonl)",
    )
    args = parser.parse_args(argv)
    if min(args.clients, args.topk) < 1 or min(args.capacity_seconds, args.factor, args.seconds) <= 0:
        parser.error("--clients, --topk, --factor and both numbers of seconds must be above 0")
    if not args.questions.is_file():
        parser.error(f"{args.questions}: no such file; give your questions with --questions FILE")
    return args


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; returns 1 if a criterion was missed, else 0."""
    args = parse_args(argv)
    return min(1, load.run(measure(args, load.read_questions(args.questions))))


if __name__ == "__main__":
    sys.exit(main())
