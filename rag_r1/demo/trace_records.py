"""Writes rule-based traces of the demo world as trajectory records.

The record of such a trace has the same form as that of a trajectory that a policy has played: turns with
their calls, the documents that were shown, the answer, and the gold answers. `rag-r1 sft-data` reads these
records, so that a policy can be fine-tuned on traces without a teacher. This command writes them to
traces/traces.jsonl:

    python -m rag_r1.demo.trace_records --out traces --protocol rag_r1_mq --mix gold --batches 100

Every batch asks about a new random world, so that no fact can be memorised.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from rag_r1.agent import Trajectory, Turn
from rag_r1.demo.policy import PROTOCOLS
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.traces.mixes import FULL, GOLD, MIXED, draw_strategy
from rag_r1.demo.traces.writer import SearchFunction, Segment, write_trace
from rag_r1.demo.world import Question, demo_protocol, fresh_world, make_questions
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.protocols import Answer, Protocol, Search

#: Number of questions in a batch.
BATCH = 16
#: The mixes of strategies, by their names on the command line.
MIXES = {"mixed": MIXED, "gold": GOLD, "full": FULL}


@dataclass(frozen=True)
class DemoTrace:
    """A question with a trace that answers it, correctly or not."""

    question: Question
    segments: list[Segment]
    #: Searches the world that the question is about.
    search: SearchFunction


def warm_traces(protocol: Protocol, mix: str, batches: int, seed: int) -> Iterator[list[DemoTrace]]:
    """Yield batches of traces, each about a new world. The strategies are drawn from `mix`, a key of MIXES.

    The same arguments give the same traces.
    """
    rng = random.Random(f"warm-{seed}")
    shares = MIXES[mix][protocol.name]
    for _ in range(batches):
        world = fresh_world(rng)
        search = WorldSearch(world.passages).results
        yield [
            DemoTrace(
                question,
                write_trace(
                    question, draw_strategy(shares[question.kind], rng), world, protocol, search, rng
                ),
                search,
            )
            for question in make_questions(world, BATCH, rng.randrange(1 << 48))
        ]


def played_trajectory(trace: DemoTrace, protocol: Protocol, trajectory_id: str) -> Trajectory:
    """Return the trajectory of a policy that writes the turns of a trace. Its last turn gives the answer."""
    trajectory = Trajectory(trajectory_id, trace.question.text, protocol.name, status="answered")
    for segment in trace.segments:
        if not segment.generated:
            continue
        action = protocol.parse(segment.text)
        if isinstance(action, Search):
            documents = trace.search(action.queries)
            trajectory.turns.append(Turn.searched(segment.text, action.queries, documents))
        else:
            assert isinstance(action, Answer)  # a rule writes no other action
            trajectory.turns.append(Turn(segment.text, action.kind))
            trajectory.answer = action.text
    return trajectory


def write_records(path: Path, protocol: Protocol, mix: str, batches: int, seed: int) -> int:
    """Write the records of `warm_traces` as JSON lines, and return their number. Raises OSError."""

    def records() -> Iterator[dict[str, Any]]:
        trace_batches = warm_traces(protocol, mix, batches, seed)
        progress = tqdm(trace_batches, "traces", total=batches, unit="batch", mininterval=5)
        for step, traces in enumerate(progress):
            for trace in traces:
                trajectory = played_trajectory(trace, protocol, f"demo/{step}/{trace.question.id}")
                golds = [trace.question.gold]
                columns = {"step": step, "split": "train", "data_source": "demo", "golds": golds}
                yield {**columns, **trajectory.to_dict()}

    path.parent.mkdir(parents=True, exist_ok=True)
    return write_json_lines(path, records())


class TraceArguments(Arguments):
    """The arguments of `python -m rag_r1.demo.trace_records`."""

    out: Path = argument("folder for traces.jsonl", "DIR")
    protocol: Literal[PROTOCOLS] = argument("protocol of the traces", default="rag_r1_mq")
    mix: Literal[tuple(MIXES)] = argument(
        "strategies: right and wrong as in the warm start, the shortest right ones, or all right ones",
        default="mixed",
    )
    batches: Positive = argument(
        f"number of batches of {BATCH} questions, each about a new world", default=300
    )
    seed: int = argument("seed of the worlds, questions and strategies", default=0)


@command_main(OSError)
def main(argv: Sequence[str] | None = None) -> int:
    """Write the traces, and print how many there are."""
    args = read_arguments(
        TraceArguments,
        argv,
        prog="python -m rag_r1.demo.trace_records",
        description="Write rule-based traces of the demo world as trajectory records.",
    )
    path = args.out / "traces.jsonl"
    protocol = demo_protocol(args.protocol)
    print(f"{path}: {write_records(path, protocol, args.mix, args.batches, args.seed)} traces")
    return 0


if __name__ == "__main__":
    sys.exit(main())
