"""Runs the two loops of a seed with `rag-r1 iterate`, and reads the results of finished ones.

    loop      rounds of agent, data, retriever, index and reload, and a last training of the agent
    control   the same trainings of the agent with the first index; the steps before the first retriever are
              copied from the loop

A loop is finished when its folder has FINISHED, the file with its number of rounds and its table.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from examples.agentic_r.loop_inputs import LoopInputs
from examples.agentic_r.loop_settings import runs_hash
from examples.agentic_r.recall import RECALL
from examples.common.comparison import finished_runs
from rag_r1.demo.run import OUTPUTS
from rag_r1.io.atomic_files import atomic_file, write_json
from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import run_child
from rag_r1.runs.state_file import StateFile

ARMS = ("loop", "control")
DEFAULT_OUT = OUTPUTS / "agentic_r"
#: The file in the folder of a finished loop.
FINISHED = "arm.json"
#: The steps before the first retriever, which both arms have in common.
_SHARED_STEPS = ("start", "round1/agent", "round1/agent_evaluation")


def run_arm(inputs: LoopInputs, arm: str, seed: int, rounds: int) -> None:
    """Run the loop of an arm, if it is not finished.

    Raises RunError if the loop ends with an error; if this arm, or the loop with which the control begins,
    was finished with another number of rounds; or if the control is to begin before its loop is finished.
    """
    out = inputs.folder / arm
    for name in ("control", "loop") if arm == "control" else ("loop",):
        # What is read is not used: reading refuses another number of rounds.
        StateFile(inputs.folder / name / FINISHED, {"rounds": rounds}, refuses_changes=True).read(dict)
    if (out / FINISHED).exists():
        return
    if arm == "control":
        _copy_shared_steps(inputs.folder / "loop", out)
    # The loop trains the agent once more after its last round; the control needs another round for that.
    count = rounds if arm == "loop" else rounds + 1
    arguments = ["--recipe", str(inputs.write_recipe(arm, seed)), "--rounds", str(count), "--out", str(out)]
    print(f"seed {seed}: {arm}", flush=True)
    status = run_child([sys.executable, "-m", "rag_r1.cli", "iterate", *arguments])
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


def finished_loops(out: Path) -> list[dict[str, Any]]:
    """Return the finished loops in the folder that have the present `runs_hash`, by seed and arm.

    Each has the recall of its seed's indexes.
    """
    runs = [run for run in finished_runs(out, FINISHED, ARMS) if run["made_of"] == runs_hash()]
    for run in runs:
        recall = out / f"seed{run['seed']}" / RECALL
        run["recall"] = json.loads(recall.read_text(encoding="utf-8")) if recall.exists() else {}
    return runs


def last_round(inputs: LoopInputs) -> tuple[Path, Path]:
    """Return the folder with the data of the loop's last round, and the model of the training that follows.

    Raises RunError if the loop is not finished.
    """
    loop = inputs.folder / "loop"
    if not (loop / FINISHED).exists():
        raise RunError(f"{loop} is not finished: run python -m examples.agentic_r.run first")
    rounds = json.loads((loop / FINISHED).read_text(encoding="utf-8"))["rounds"]
    agent = loop / f"round{rounds + 1}" / "agent" / "model"
    return loop / f"round{rounds}" / "data" / "run", agent.resolve()
