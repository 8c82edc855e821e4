"""Compares the time of a batch of rollouts with independent trajectories and with trajectories in lock step.

    python benchmarks/rollout.py                          # simulated engine, real retrieval server
    python benchmarks/rollout.py scale                    # how cost grows with trajectories and turns
    OMP_NUM_THREADS=1 python benchmarks/rollout.py vllm   # vLLM, the demo policy, two-hop questions

The same turns are played under three schedules (schedules.py): `async`, the agent core; `lockstep` (generate
for all, search for all, repeat: Search-R1's loop); and `serial` (the same with one HTTP request after
another: RAG-R1's loop). The columns of the tables are:

    wall      time of the batch
    critical  time of the longest trajectory with a slot and the retriever to itself, computed from the drawn
              times; no schedule can be faster. On vLLM it is measured before each round, as the time of the
              same turns without search pauses, or of the longest trajectory's searches if these take longer
    busy      mean share of the engine's slots in use
    ratio     wall time divided by that of the first schedule
    cpu       CPU time of the whole process: the loop, the retrieval client, the simulation

Simulated seconds are real seconds times --speed. Only the sleeping is accelerated, so the overhead is
overstated by that factor. A retrieval server is started over the demo's world (BM25, or dense with
--encoder), unless --retriever-url names one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from schedules import BATCH, NAMES, Outcome, closing, play
from simulated import Bench, Load, Rates, SomeDocuments, draw

from rag_r1.agent import Budget
from rag_r1.demo.simulate import BUDGET
from rag_r1.demo.world import World, make_questions, make_world
from rag_r1.protocols import Document
from rag_r1.tools import RetrievalClient, RetrieverConfig
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process

PARTS = ("simulated", "scale", "vllm")
PROTOCOL = "rag_r1_mq"
TOPK = 3
HEADER = (
    f"{'':<26} {'schedule':<9} {'wall s':>8} {'critical':>8} {'busy':>6} {'ratio':>6} {'cpu ms/turn':>12}"
)


def print_row(
    label: str, outcome: Outcome, speed: float, critical: float | None, base_s: float
) -> dict[str, Any]:
    """Print one row of a table, and return it as data.

    `critical` is in seconds of the load, and `base_s`, the wall time of the first schedule, in real seconds.
    """
    wall = outcome.wall_s * speed
    data = {
        "label": label,
        "schedule": outcome.name,
        "wall_s": wall,
        "critical_s": critical,
        "over_critical": wall / critical if critical else None,
        "busy": outcome.busy,
        "ratio": outcome.wall_s / base_s,
        "cpu_ms_a_turn": 1000 * outcome.cpu_s / outcome.turns,
        "turns": outcome.turns,
        "tokens": sum(r.generated_tokens + r.observed_tokens for r in outcome.records),
        "failed_searches": outcome.failed_searches,
    }
    bound = f"{critical:8.1f}" if critical else f"{'-':>8}"
    failed = f"   {outcome.failed_searches} searches failed" if outcome.failed_searches else ""
    print(
        f"{label:<26} {outcome.name:<9} {wall:8.2f} {bound} {outcome.busy:6.1%} {data['ratio']:5.2f}x "
        f"{data['cpu_ms_a_turn']:12.3f}{failed}",
        flush=True,
    )
    return data


def simulated(args: argparse.Namespace, bench: Bench, url: str) -> list[dict[str, Any]]:
    """Measure all schedules for each sigma and each number of slots, with the retrieval server."""
    print(
        f"\nsimulated engine, retrieval server at {url}: {args.trajectories} trajectories, {args.turns[0]}-"
        f"{args.turns[1]} turns, decode {args.decode_s:g} s per turn (mean), search {args.search_s:g} s, "
        f"speed {args.speed:g}\n{HEADER}"
    )
    make_client = client_factory(url)
    rows = []
    for sigma in args.sigma:
        plans = draw(load_of(args, sigma), bench.queries)
        for slots in args.slots:
            label = f"sigma {sigma:g}, {slots or 'unlimited'} slots"
            base_s = None
            for name in args.schedules:
                outcome, critical = bench.run(name, plans, make_client, args.speed, slots or None)
                base_s = base_s or outcome.wall_s
                rows.append(print_row(label, outcome, args.speed, critical, base_s))
    return rows


def scale(args: argparse.Namespace, bench: Bench, world: World) -> list[dict[str, Any]]:
    """Measure the cost by the number of trajectories and by the number of turns, without a server."""
    documents = [Document(passage["id"], passage["contents"]) for passage in world.passages]
    print(f"\nsimulated engine and retriever, unlimited slots, sigma {args.sigma[0]:g}, speed {args.speed:g}")
    print(HEADER)
    load = load_of(args, args.sigma[0])
    loads = {f"{n} trajectories": replace(load, trajectories=n) for n in args.scale_trajectories}
    for turns in args.scale_turns:
        with_turns = replace(load, trajectories=64, least_turns=turns, most_turns=turns)
        loads[f"64 trajectories x {turns} turns"] = with_turns
    rows = []
    for label, scaled_load in loads.items():
        plans, base_s = draw(scaled_load, bench.queries), None
        for name in [name for name in args.schedules if name != "serial"]:
            outcome, critical = bench.run(
                name, plans, lambda: SomeDocuments(documents, TOPK), args.speed, None, args.capacity
            )
            base_s = base_s or outcome.wall_s
            rows.append(print_row(label, outcome, args.speed, critical, base_s))
    return rows


def vllm(args: argparse.Namespace, world: World, url: str) -> list[dict[str, Any]]:
    """Measure all schedules with vLLM, in several rounds.

    A row also has the number of texts that are the `same` as in the first run.
    """
    from real_engine import CONTEXT, real_engine

    questions = make_questions(world, args.questions, seed=args.seed, kinds=("bridge",))
    budget = Budget(**{**vars(BUDGET), "max_response_tokens": CONTEXT - 64})
    # Only the durations of searches are drawn, more than an episode can have.
    load = replace(
        load_of(args, sigma=0), trajectories=len(questions), least_turns=8, most_turns=8, decode_s=0
    )
    plans = draw(load, queries=["-"])
    slots = args.slots[-1] or args.questions
    rows: list[dict[str, Any]] = []

    async def main() -> None:
        async with real_engine(args.policy, PROTOCOL, slots) as factory:
            print(
                f"\nvLLM, {slots} slots, retrieval server at {url}: {len(questions)} two-hop questions, "
                f"temperature {args.temperature:g}, search {args.search_s:g} s or the server's own\n{HEADER}"
            )

            async def run(name: str, count: int, speed: float = 1.0) -> Outcome:
                pauses = [iter([turn.search_s / speed for turn in plan]).__next__ for plan in plans[:count]]
                jobs = factory.jobs(questions[:count], args.temperature, pauses)
                async with closing(client_factory(url)()) as searcher:
                    return await play(name, jobs, searcher, factory.protocol, budget, factory.codec, slots)

            await run("async", min(16, len(questions)))  # warms up
            first_texts: dict[str, str] = {}
            for round_number in range(1, args.rounds + 1):
                base_s, without_pauses = None, await run("async", len(questions), speed=math.inf)
                for name in args.schedules:
                    outcome = await run(name, len(questions))
                    base_s = base_s or outcome.wall_s
                    critical = max(without_pauses.wall_s, *outcome.search_wait_s)
                    texts = {record.id: record.generated_text for record in outcome.records}
                    first_texts = first_texts or texts
                    same = sum(first_texts[id_] == text for id_, text in texts.items())
                    entry = print_row(f"round {round_number}", outcome, 1.0, critical, base_s)
                    print(
                        f"{'':<26}   {outcome.turns} turns, {entry['tokens']} tokens, "
                        f"{dict(outcome.statuses)}; {same} of {len(texts)} as in the first run"
                    )
                    rows.append({**entry, "same": same})

    asyncio.run(main())
    return rows


def load_of(args: argparse.Namespace, sigma: float) -> Load:
    """Return the parameters of the load for this sigma of the decoding times."""
    return Load(
        trajectories=args.trajectories,
        least_turns=args.turns[0],
        most_turns=args.turns[1],
        decode_s=args.decode_s,
        sigma=sigma,
        search_s=args.search_s,
        search_sigma=args.search_sigma,
        seed=args.seed,
    )


def client_factory(url: str) -> Callable[[], RetrievalClient]:
    """Return a factory for clients without a cache."""
    return lambda: RetrievalClient(RetrieverConfig(url=url, topk=TOPK, cache_size=0))


@contextmanager
def server_over(world: World, url: str | None, encoder: str | None = None) -> Iterator[str]:
    """Yield `url`, or the address of a new server over the world's passages.

    The new server has no cache, and a dense index with `encoder`, or else BM25.
    """
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        with open(out / "corpus.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(passage) + "\n" for passage in world.passages)
        backend = ("dense", "--encoder", encoder) if encoder else ("bm25",)
        index = build_index(out / "corpus.jsonl", out / "index", "--backend", *backend)
        options = ("--cache-size", "0", "--max-queries", str(BATCH))
        with retrieval_process(index, out / "server.log", *options) as server:
            yield server


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("part", nargs="?", default="simulated", choices=PARTS, help="(default %(default)s)")
    add("--schedules", nargs="+", default=list(NAMES), choices=NAMES, help="the first is `ratio`'s baseline")
    add("--trajectories", type=int, default=256, help="trajectories in the batch (default %(default)s)")
    add(
        "--turns",
        type=int,
        nargs=2,
        default=(1, 4),
        metavar=("LEAST", "MOST"),
        help="turns per trajectory (default 1 4)",
    )
    add("--decode-s", type=float, default=2.0, help="mean seconds of a turn's decoding (default %(default)s)")
    add("--sigma", type=float, nargs="+", default=[0.6, 1.0], help="of the decoding times (default 0.6 1.0)")
    add("--slots", type=int, nargs="+", default=[0, 64], help="of the engine; 0: unlimited (default 0 64)")
    add("--search-s", type=float, default=0.15, help="mean seconds of a search (default %(default)s)")
    add("--search-sigma", type=float, default=0.0, help="sigma of the search times (default 0: all equal)")
    add(
        "--capacity",
        type=int,
        help="concurrent searches in `scale`'s simulated retriever (default: no limit)",
    )
    add("--decode-rate", type=float, default=50.0, help="tokens per second of a slot (default %(default)s)")
    add("--prefill-rate", type=float, default=10_000.0, help="tokens per second (default %(default)s)")
    add("--speed", type=float, default=1.0, help="simulated seconds per real second (default %(default)s)")
    add("--seed", type=int, default=0, help="seed of all random draws (default %(default)s)")
    add("--encoder", metavar="NAME_OR_PATH", help="start the server with a dense index instead of BM25")
    add("--retriever-url", metavar="URL", help="a running server (default: start one)")
    add("--scale-trajectories", type=int, nargs="*", default=[16, 64, 256, 1024], metavar="N")
    add("--scale-turns", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32], metavar="T")
    add("--questions", type=int, default=128, help="questions in `vllm` (default %(default)s)")
    add("--rounds", type=int, default=3, help="rounds in `vllm` (default %(default)s)")
    add("--temperature", type=float, default=1.0, help="temperature in `vllm` (default %(default)s)")
    add("--policy", type=Path, metavar="DIR", help="policy in `vllm` (default: the demo's warm start)")
    add("--json", type=Path, metavar="FILE", help="also write the rows into this file")
    args = parser.parse_args(argv)
    if not 1 <= args.turns[0] <= args.turns[1]:
        parser.error("--turns: LEAST must be 1 or more, and MOST at least LEAST")
    if min([args.trajectories, args.questions, args.rounds, *args.scale_trajectories, *args.scale_turns]) < 1:
        parser.error("numbers of trajectories, turns, questions and rounds must be 1 or more")
    if min(args.speed, args.decode_s, args.decode_rate, args.prefill_rate) <= 0:
        parser.error("--speed, --decode-s, --decode-rate and --prefill-rate must be above 0")
    if min([args.search_s, args.search_sigma, *args.sigma, *args.slots]) < 0:
        parser.error("--search-s, --search-sigma, --sigma and --slots must not be negative")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its tables; returns the exit status."""
    args = parse_args(argv)
    world = make_world(args.seed, "train", people=1000, places=200)
    bench = Bench.over(PROTOCOL, list(world.facts["birthplace"]), Rates(args.decode_rate, args.prefill_rate))
    if args.part == "scale":
        rows = scale(args, bench, world)
    else:
        with server_over(world, args.retriever_url, args.encoder) as url:
            rows = vllm(args, world, url) if args.part == "vllm" else simulated(args, bench, url)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
