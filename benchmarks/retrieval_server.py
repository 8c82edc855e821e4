"""Measures and compares the throughput and the latency of retrieval servers.

Any server with `POST /retrieve {"queries", "topk", "return_scores"}` can be measured:

    python retrieval_server/start_retrieval.py --index indexes/wiki --port 8000 --cache-size 0 &
    python retrieval_server/start_retrieval.py --index indexes/wiki --port 8001 --cache-size 0 --max-batch 1 &
    python benchmarks/retrieval_server.py --url http://127.0.0.1:8000 --url http://127.0.0.1:8001 --clients 64
    python benchmarks/retrieval_server.py --url http://127.0.0.1:8000 --ceiling indexes/wiki

A client sends one question at a time, as a trajectory does. In the closed loop (the default) each of
`--clients` sends the next question as soon as it has an answer. In the open loop (`--rate`) questions arrive
at random times at that rate, whether the server keeps up or not, and the latency counts from the time at
which a question was due.

`--anchor search-r1 PATH --index DIR` starts two servers on the same index and encoder and stops them at the
end: ours, and the original, Search-R1's `search_r1/search/retrieval_server.py`. PATH is a clone of
https://github.com/PeterGriffinJin/Search-R1 or that file alone. The file runs unmodified, and none of its
code is part of this project (benchmarks/search_r1_server.py says what is changed around it):

    python benchmarks/retrieval_server.py --anchor search-r1 Search-R1 --index DIR --ceiling DIR
    python benchmarks/retrieval_server.py --index DIR --ours "--dtype int8" --ours "OMP_PROC_BIND=true"

`--ours` starts another server of ours on `--index`, with variables of its environment and flags. `--ceiling`
measures the encoder and the search of an index without a server, each alone in a separate process
(benchmarks/retrieval_stages.py), and adds up the two. It processes all questions in batches of the number of
clients. For an exact index there is a second ceiling, with FAISS's own search in place of ours.

The same search can take longer in one process than in another, for as long as the process lives. `--restarts`
repeats the measurement with new processes, and the medians are over the rounds of all starts.

All targets are measured in turn, `--rounds` times, and medians are reported, so that other work on the
machine affects all of them. In the beginning every question is sent alone; responses under load must then
have the same ids, and the ids of the servers are compared. Questions repeat, so turn off a server's cache
unless you want to measure it. The clients run on this machine and use its cores as little as possible.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import aiohttp

_here = Path(__file__).resolve().parent


def _beside(name: str) -> ModuleType:
    """Load a module of this folder by its path.

    It cannot be imported by name: with this folder on the path, this file would hide the package of its name.
    """
    spec = importlib.util.spec_from_file_location(name, _here / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


load, processes = _beside("retrieval_load"), _beside("retrieval_processes")
Ceiling, Round, Target = load.Ceiling, load.Round, load.Target


def line(name: str, rounds: list[Round]) -> str:
    """Return a server's row: medians over its rounds, and the sums of errors and of differing ids."""
    errors = sum((round_.errors for round_ in rounds), Counter())
    answers = sum(len(round_.latencies) for round_ in rounds)
    latencies = [
        statistics.median(round_.percentile(share) for round_ in rounds) for share in (0.5, 0.95, 0.99)
    ]
    speeds = [round_.qps for round_ in rounds]
    spread = f"{min(speeds):.1f}-{max(speeds):.1f}"
    problems = ", ".join(f"{count} x {kind}" for kind, count in errors.most_common()) or "none"
    times = " ".join(f"{latency:8.1f}" for latency in latencies)
    row = f"{name:<44} {statistics.median(speeds):8.1f} {spread:>15} {times}"
    compared = [round_.other_ids for round_ in rounds if round_.other_ids is not None]
    if not compared:
        return row
    return f"{row}   errors {problems}; {sum(compared)} of {answers} answers differ from those asked alone"


async def measure(
    args: argparse.Namespace,
    questions: list[str],
    urls: dict[str, str],
    ceilings: list[Ceiling],
    alone: dict[str, dict[str, list[str]]],
) -> dict[str, list[Round]]:
    """Measure every server and ceiling in alternating rounds, and print each result.

    `urls` has the addresses by the names of the servers. `alone` has the ids of each server for each question
    that is sent alone; missing ones are requested and added. Raises SystemExit if a server does not answer
    them.
    """
    connections = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=args.timeout)
    async with aiohttp.ClientSession(connector=connections, timeout=timeout) as session:
        targets = [Target(name, url, session, args.topk) for name, url in urls.items()]
        for target in targets:
            if target.name in alone:
                target.alone = alone[target.name]
                continue
            try:
                await target.learn(questions)
            except (aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
                raise SystemExit(
                    f"error: {target.name} does not answer as a retrieval server ({error!r})"
                ) from None
            alone[target.name] = target.alone
            if target is not targets[0]:
                same = sum(targets[0].alone[question] == target.alone[question] for question in questions)
                names = f"{targets[0].name} and {target.name}"
                print(f"the same ids from {names}: {same} of {len(questions)} questions")
        order = random.Random(0).sample(questions, len(questions))
        measured: list[Target | Ceiling] = [*targets, *ceilings]
        results: dict[str, list[Round]] = {target.name: [] for target in measured}
        for round_number, target in itertools.product(range(1, args.rounds + 1), measured):
            endless = itertools.cycle(order)
            if isinstance(target, Ceiling):
                result = target.round()
            elif args.rate:
                result = await load.open_loop(target, endless, args.rate, args.seconds)
            else:
                result = await load.closed_loop(target, endless, args.clients, args.seconds)
            results[target.name].append(result)
            print(f"  round {round_number} {target.name}: {result.qps:.1f} queries/s", flush=True)
    return results


def _own_settings(args: argparse.Namespace) -> list[str]:
    """Return the settings of each server of ours that is started; the one of --anchor has none."""
    return [*([""] if args.anchor is not None else []), *args.ours]


@contextmanager
def started(args: argparse.Namespace, questions: list[str]) -> Iterator[tuple[dict[str, str], list[Ceiling]]]:
    """Start the servers and ceilings; yields the addresses of all servers by name, and the ceilings.

    At the end of the block the started processes are ended.
    """
    urls, ceilings = {}, []
    with ExitStack() as contexts:
        for own_settings in _own_settings(args):
            ours = processes.ours(args.index, args.device, own_settings)
            urls[f"ours {own_settings}".strip()] = contexts.enter_context(ours)
        if args.anchor is not None:
            original = processes.search_r1(Path(args.anchor[1]), args.index, args.device)
            urls["Search-R1's"] = contexts.enter_context(original)
        urls.update((url, url) for url in args.url)
        if args.ceiling is not None:
            batch = args.batch or args.clients
            work = Path(contexts.enter_context(TemporaryDirectory(prefix="ceiling-")))
            stages = processes.stages(args.ceiling, questions, batch, args.topk, work, args.device)
            ceilings = [
                Ceiling(name, ceiling_stages, batch, len(questions))
                for name, ceiling_stages in contexts.enter_context(stages).items()
            ]
        for name, url in urls.items():
            print(f"started {name}: {url}" if name != url else f"measured: {url}", flush=True)
        yield urls, ceilings


def report(args: argparse.Namespace, results: dict[str, list[Round]]) -> None:
    """Print the table of the servers, and a comparison of each with the first."""
    arrivals = f"open loop, {args.rate:g} per second" if args.rate else f"closed loop, {args.clients} clients"
    starts = f" in each of {args.restarts} starts" if args.restarts > 1 else ""
    times = f"{args.rounds} rounds of {args.seconds:g} s{starts}"
    print(f"\n{arrivals}, {times}, medians; latency in milliseconds")
    print(f"{'server':<44} {'q/s':>8} {'(min-max)':>15} {'p50':>8} {'p95':>8} {'p99':>8}")
    for name, rounds in results.items():
        print(line(name, rounds))
    (first, first_rounds), *others = results.items()
    for name, rounds in others:
        other = statistics.median(round_.qps for round_ in rounds)
        # The rate is 0 if a server needs longer than a round for a response.
        qps = statistics.median(round_.qps for round_ in first_rounds) / other if other else float("nan")
        p50, p95 = (
            statistics.median(round_.percentile(share) for round_ in first_rounds)
            / statistics.median(round_.percentile(share) for round_ in rounds)
            for share in (0.5, 0.95)
        )
        print(
            f"{first} / {name}: {qps:.2f} x the queries per second, {p50:.2f} x the p50, {p95:.2f} x the p95"
        )


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the arguments of the command line."""
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
    parser.add_argument("--index", type=Path, metavar="DIR", help="the dense index of --anchor and --ours")
    parser.add_argument(
        "--ours",
        action="append",
        default=[],
        metavar="'[NAME=VALUE ...] [FLAG ...]'",
        help="start one more server of ours with this environment and these flags; repeat for more",
    )
    parser.add_argument("--device", help="of all encoders that are started here (default: a GPU if any)")
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
    parser.add_argument(
        "--restarts",
        type=int,
        default=1,
        help="start servers and stages so many times, with the rounds each time (default %(default)s)",
    )
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
        default=load.QUESTIONS,
        metavar="FILE",
        help="JSONL with 'question', or text with one per line (default ../shared/data/qa/hotpotqa.jsonl)",
    )
    args = parser.parse_args(argv)
    if not args.url and args.ceiling is None and args.anchor is None and not args.ours:
        parser.error("give at least one --url, --anchor search-r1 PATH, --ours FLAGS, or --ceiling INDEX")
    if args.anchor is not None and args.anchor[0] != "search-r1":
        parser.error(f"--anchor {args.anchor[0]}: the only anchor is search-r1")
    if (args.anchor is None and not args.ours) != (args.index is None):
        parser.error("--anchor or --ours, and --index, belong together: what is started serves that index")
    for own_settings in args.ours:
        try:
            processes.settings(own_settings)
        except ValueError as error:
            parser.error(f"--ours {own_settings!r}: {error}")
    names = [own_settings.strip() for own_settings in _own_settings(args)]
    if len(set(names)) < len(names):
        parser.error("--ours: each once; --anchor already starts one without settings")
    if args.anchor is not None and not Path(args.anchor[1]).exists():
        parser.error(f"--anchor search-r1 {args.anchor[1]}: no such file or folder; clone Search-R1 there")
    if min(args.clients, args.rounds, args.restarts, args.topk, args.batch or 1) < 1 or args.seconds <= 0:
        parser.error("--clients, --rounds, --restarts, --topk, --batch and --seconds must be above 0")
    if args.rate is not None and not args.rate > 0:
        parser.error("--rate must be above 0")
    if not args.questions.is_file():
        parser.error(f"{args.questions}: no such file; give your questions with --questions FILE")
    return args


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its table; returns the exit status."""
    args = parse_args(argv)
    questions = list(dict.fromkeys(load.read_questions(args.questions)))
    results: dict[str, list[Round]] = {}
    alone: dict[str, dict[str, list[str]]] = {}
    for _ in range(args.restarts):
        with started(args, questions) as (urls, ceilings):
            for name, rounds in load.run(measure(args, questions, urls, ceilings, alone)).items():
                results.setdefault(name, []).extend(rounds)
    report(args, results)
    if args.json is not None:
        rows = {name: [asdict(round_) for round_ in rounds] for name, rounds in results.items()}
        args.json.write_text(json.dumps(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
