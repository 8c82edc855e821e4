"""Agentic-R in miniature: trains a retriever with the agent where similarity misleads.

    python -m examples.agentic_r.run --seeds 0 1 2

The command makes the agent's warm start (examples/agentic_r/warm_start.py) and an untrained encoder once, and
for each seed a world (examples/agentic_r/world.py), its questions and the first index. Then it runs
`rag-r1 iterate` twice, with real trainings:

    loop      two rounds of agent, data, retriever, index and reload, and a last training of the agent
    control   the same trainings of the agent with the first index; the steps before the first retriever are
              copied from the loop

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

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from examples.agentic_r.loop_inputs import LoopInputs, runs_hash, worlds
from examples.agentic_r.markdown import draw, markdown
from examples.agentic_r.recall import recall_of
from examples.common.comparison import Seeds, finished_runs, write_page
from rag_r1.demo.run import OUTPUTS
from rag_r1.io.atomic_files import atomic_file, write_json
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_out
from rag_r1.runs.processes import run_child
from rag_r1.runs.state_file import StateFile

ARMS = ("loop", "control")
#: The steps before the first retriever, which both arms have in common.
_SHARED_STEPS = ("start", "round1/agent", "round1/agent_evaluation")
DEFAULT_OUT = OUTPUTS / "agentic_r"
FINISHED = "arm.json"
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
    arms: list[Literal["loop", "control"]] = argument(
        "loops to run; control needs the finished loop of its seed", ("ARM", ...), default=["loop", "control"]
    )
    rounds: Positive = argument("number of rounds of the loop", "K", default=2)
    out: Path = argument("folder of the comparison", "DIR", default=DEFAULT_OUT)


def run_arm(inputs: LoopInputs, arm: str, seed: int, rounds: int) -> None:
    """Run the loop of an arm, if it is not finished.

    Raises RunError if the loop ends with an error, or if this arm, or the loop with which the control begins,
    was finished with another number of rounds.
    """
    out = inputs.folder / arm
    for name in ("control", "loop") if arm == "control" else ("loop",):
        # Read only for its refusal.
        StateFile(inputs.folder / name / FINISHED, {"rounds": rounds}, refuses=True).read(dict)
    if (out / FINISHED).exists():
        return
    if arm == "control":
        _copy_shared_steps(inputs.folder / "loop", out)
    # The loop trains the agent once more after its last round; the control needs another round for that.
    count = rounds if arm == "loop" else rounds + 1
    words = ["--recipe", str(inputs.write_recipe(arm, seed)), "--rounds", str(count), "--out", str(out)]
    print(f"seed {seed}: {arm}", flush=True)
    status = run_child([sys.executable, "-m", "rag_r1.cli", "iterate", *words])
    if status:
        raise RunError(f"the loop of {out} ended with status {status} (see above): run the command again")
    rows = json.loads((out / "rounds.json").read_text(encoding="utf-8"))["rows"]
    run = {"arm": arm, "seed": seed, "made_of": runs_hash(), "rounds": rounds, "rows": rows}
    write_json(out / FINISHED, run)


def _copy_shared_steps(loop: Path, control: Path) -> None:
    """Copy the steps that both arms have in common into the control, unless its folder exists.

    Raises RunError if the loop is not finished.
    """
    if control.exists():
        return
    if not (loop / FINISHED).exists():
        message = f"{loop} is not finished, and the control begins with its first steps"
        raise RunError(f"{message}: run --arms loop first")
    with atomic_file(control) as part:
        for name in _SHARED_STEPS:
            shutil.copytree(loop / name, part / name, symlinks=True)


def measure_recall(inputs: LoopInputs, seed: int, rounds: int) -> dict[str, dict[str, float]]:
    """Measure the recall of the held-out facts' passages, or read it if it has been measured.

    Returns it by index: `first`, `round 1`, and so on.
    """
    path = inputs.folder / "recall.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    data, _, test = worlds(seed)
    recalls = {"first": recall_of(inputs.folder / "index", data.val, test, "plain")}
    for number in range(1, rounds + 1):
        index = inputs.folder / "loop" / f"round{number}" / "index" / "index"
        recalls[f"round {number}"] = recall_of(index, data.val, test, "agentic")
    write_json(path, recalls)
    return recalls


def finished_loops(out: Path) -> list[dict[str, Any]]:
    """Return the finished loops in the folder that have the present `runs_hash`, by seed and arm.

    Each has the recall of its seed's indexes.
    """
    runs = [run for run in finished_runs(out, FINISHED, ARMS) if run["made_of"] == runs_hash()]
    for run in runs:
        measured = out / f"seed{run['seed']}" / "recall.json"
        run["recall"] = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else {}
    return runs


@command_main(RunError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 when the page is written, or 1 with the reason."""
    args = read_arguments(
        MiniatureArguments, arguments, prog="python -m examples.agentic_r.run", description=_DESCRIPTION
    )
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


if __name__ == "__main__":
    sys.exit(main())
