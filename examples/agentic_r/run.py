"""Agentic-R in miniature: trains a retriever with the agent where similarity misleads.

    python -m examples.agentic_r.run --seeds 0 1 2

The command makes the agent's warm start (examples/agentic_r/warm_start.py) and an untrained encoder once, and
for each seed a world (examples/agentic_r/world.py), its questions and the first index. Then it runs
`rag-r1 iterate` twice, with real trainings: as `loop`, by default with two rounds, and as `control`
(examples/agentic_r/loops.py).

    OUT/warm-HASH, OUT/encoder       the agent's warm start, the untrained encoder
    OUT/seed0/data, index            the world and its first index
    OUT/seed0/loop, control          the loops, each with its rounds.md and rounds.png
    OUT/seed0/loop.yaml, ...         their recipes
    OUT/seed0/made_of, recall.json   the hash of what the runs depend on, the recall of each index
    OUT/agentic_r.md, agentic_r.png  the table and the picture of all seeds in the folder

Finished steps are not repeated, and an interrupted run resumes when the command is repeated. Afterwards,
`python -m examples.agentic_r.variants` compares retrievers with the same data and agent.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from examples.agentic_r.loop_inputs import LoopInputs
from examples.agentic_r.loops import ARMS, DEFAULT_OUT, FINISHED, finished_loops, run_arm
from examples.agentic_r.markdown import draw, markdown
from examples.agentic_r.recall import measure_recall
from examples.common.comparison import Seeds, write_page
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_out
from rag_r1.runs.start_checks import StartChecks

_DESCRIPTION = """\
Train a retriever with the agent and the agent with the retriever (Agentic-R), on this machine and with
everything real and small: an invented world in which similarity misleads, the demo's policy, an encoder of
two layers, veRL, vLLM, the retrieval server. The control has the same trainings of the agent and keeps the
first index. This takes about twenty minutes a seed on two cores, and three for the agent's warm start. An
interrupted run resumes when the command is repeated.
"""


class MiniatureArguments(Arguments):
    """The seeds and loops to run, and their folder."""

    seeds: Seeds = argument("seeds of the worlds and their questions", ("SEED", ...), default=[0])
    arms: list[Literal[ARMS]] = argument(
        "loops to run; control needs the finished loop of its seed", ("ARM", ...), default=list(ARMS)
    )
    rounds: Positive = argument("number of rounds of the loop", "K", default=2)
    out: Path = argument("folder of the comparison", "DIR", default=DEFAULT_OUT)


@command_main(RunError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 when the page is written, or 1 with the reason."""
    prog = "python -m examples.agentic_r.run"
    args = read_arguments(
        MiniatureArguments, arguments, prog=prog, description=_DESCRIPTION, check=_check_start
    )
    _check_start(args)
    with hold_out(args.out):
        for seed in args.seeds:
            inputs = LoopInputs.make(args.out, seed)
            for arm in sorted(args.arms, key=ARMS.index):
                run_arm(inputs, arm, seed, args.rounds)
            if (inputs.folder / "loop" / FINISHED).exists():
                measure_recall(inputs, seed, args.rounds)
        runs = finished_loops(args.out)
        draw(runs, args.out / "agentic_r.png")
        write_page(args.out / "agentic_r.md", markdown(runs), picture="agentic_r.png")
    return 0


def _check_start(args: MiniatureArguments) -> None:
    """Raise StartError if --out cannot be written to."""
    with StartChecks() as checks:
        checks.run(check_out, args.out)


if __name__ == "__main__":
    sys.exit(main())
