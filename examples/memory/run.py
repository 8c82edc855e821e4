"""Runs the memory experiment in miniature: questions whose pages do not fit into the context together.

    python -m examples.memory.run --seeds 0 1 2

The command makes two warm starts (once, from one base: warm_start.py). For each seed it then trains two
policies in a world of long pages (world.py):

    memory   with Agentic RAG-R1's blocks: a summary replaces the pages that were read, a backtrack removes
             a page without the fact; such a trajectory becomes several training rows
    plain    without these two blocks and plans; everything else is the same: budget, questions, script of
             the warm start, GRPO, steps

`--arms ppo` trains the memory by PPO. The page compares EM on held-out questions, with greedy decoding,
before and after training, as measured by the validations of the trainings.

    OUT/warm                   the base and the warm starts, each with a hash of what it depends on
    OUT/seed0/memory, ...      the trainings (rag_r1/demo/run.py)
    OUT/memory.md, memory.png  the tables and the curves, of all trainings that are in the folder

Finished trainings are not repeated. `--measure N` measures the warm starts in plain torch instead, which
needs no Ray and takes less than a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from examples.common.comparison import Seeds, finished_runs, unique_values, write_page
from examples.memory.markdown import draw, markdown
from examples.memory.warm_start import (
    measure_memory,
    memory_base,
    memory_protocol,
    protocol_file,
    warm_start,
    warm_start_hash,
)
from examples.memory.world import pages_data, write_pages
from rag_r1.agent.records import records_by_step
from rag_r1.demo.report import summarise
from rag_r1.demo.run import OUTPUTS, TrainingInputs, protocol_of, run_demo
from rag_r1.io.atomic_files import write_json
from rag_r1.io.errors import DataError
from rag_r1.options.arguments.overrides import CheckedOverrides, hydra_quoted
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.runs.errors import RunError
from rag_r1.runs.settings import refuse_changes

#: Arm -> its recipe in the folder `demo` of the recipes.
RECIPES = {"memory": "memory_grpo", "plain": "memory_plain", "ppo": "memory_ppo"}
_FINISHED = "memory.json"


class MemoryArguments(Arguments):
    """The seeds and trainings to run, and their folder."""

    seeds: Seeds = argument("seeds of the worlds and their questions", ("SEED", ...), default=[0])
    arms: Annotated[list[Literal["memory", "plain", "ppo"]], unique_values("--arms")] = argument(
        "trainings to run: memory, plain (both GRPO), ppo (with a memory)",
        ("ARM", ...),
        default=["memory", "plain"],
    )
    out: Path = argument("folder of the comparison", "DIR", default=OUTPUTS / "memory")
    measure: Positive | None = argument(
        "number of questions on which to measure the warm starts instead of training", "N", default=None
    )
    timeout: Positive = argument("time limit of a training", "SECONDS", default=3600)
    overrides: CheckedOverrides = argument("Hydra overrides of the trainings", "key=value", default=[])


@dataclass(frozen=True)
class MemoryArm:
    """One of the kinds of training that are compared, for all seeds."""

    #: A key of RECIPES.
    name: str
    #: The folder of the comparison.
    out: Path

    def make_inputs(self) -> TrainingInputs:
        """Make the warm start, unless it exists, and return the inputs of the training."""
        protocol = memory_protocol(protocol_of(RECIPES[self.name]))
        base = memory_base(self.out / "warm" / f"base-{warm_start_hash()}")
        policy = warm_start(self.out / "warm" / f"{protocol.name}-{warm_start_hash()}", protocol, base)
        return TrainingInputs(protocol, policy.resolve(), write_pages)

    def train(self, seed: int, overrides: Sequence[str], timeout_s: float) -> None:
        """Train the policy of a seed, unless it is finished. Raises RunError if the training fails, and
        DataError if it has recorded fewer than two validations."""
        folder = (self.out / f"seed{seed}" / self.name).resolve()
        finished = folder / _FINISHED
        if finished.exists():
            return
        print(f"seed {seed}: training {self.name}")
        recipe = RECIPES[self.name]
        protocol = protocol_of(recipe)
        run_overrides = list(overrides)
        if protocol.endswith(".yaml"):
            run_overrides.insert(0, f"rag_r1.protocol={hydra_quoted(protocol_file(protocol))}")
        results = run_demo(recipe, folder, seed, run_overrides, timeout_s, self.make_inputs())
        run = {
            "arm": self.name,
            "seed": seed,
            "overrides": list(overrides),
            "made_of": warm_start_hash(),
            "seconds": results["seconds"],
            "held_out": curve(folder),
        }
        write_json(finished, run)


def curve(folder: Path) -> dict[int, dict[str, float]]:
    """Return the figures of each validation of a training, by step."""
    steps = records_by_step(folder / "trajectories" / "val")
    return {step: figures(records) for step, records in steps.items()}


def figures(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of a validation.

    They are those of `summarise` (EM by kind, searches, turns); the shares of episodes with a summary, with a
    backtrack, and cut off because the context was full; and the mean number of training rows of a trajectory.
    """
    means = summarise(records).labelled()
    for role in ("summary", "backtrack"):
        means[role] = fmean(any(turn["action"] == role for turn in record["turns"]) for record in records)
    means["token limit"] = fmean(record["status"] == "token_limit" for record in records)
    means["rows"] = fmean(1 + max((turn["row"] for turn in record["turns"]), default=0) for record in records)
    return means


def check_folder(out: Path, overrides: Sequence[str]) -> None:
    """Raise RunError if a training in the folder had other overrides, or another world or warm start.

    One table must not mix them.
    """
    for run in finished_runs(out, _FINISHED, list(RECIPES)):
        folder = out / f"seed{run['seed']}" / run["arm"]
        settings = {"overrides": list(overrides), "made_of": warm_start_hash()}
        refuse_changes(folder, {name: run.get(name) for name in settings}, settings)


@command_main(RunError, DataError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 when the page is written, or 1 with the reason."""
    args = read_arguments(
        MemoryArguments,
        arguments,
        prog="python -m examples.memory.run",
        description="A memory in a context that holds one page: with summaries and backtracks, and without.",
        epilog="key=value arguments change the trainings, for example trainer.total_training_steps=6",
    )
    arms = [MemoryArm(name, args.out) for name in args.arms]
    if args.measure:
        return _measure(arms, args.seeds, args.measure)
    check_folder(args.out, args.overrides)
    for seed in args.seeds:
        for arm in arms:
            arm.train(seed, args.overrides, args.timeout)
    runs = finished_runs(args.out, _FINISHED, list(RECIPES))
    draw(runs, args.out / "memory.png")
    write_page(args.out / "memory.md", markdown(runs), picture="memory.png")
    return 0


def _measure(arms: Sequence[MemoryArm], seeds: Sequence[int], questions: int) -> int:
    """Print the scores of the arms' warm starts on the questions of each seed; returns 0."""
    inputs_by_policy = {inputs.policy: inputs for inputs in (arm.make_inputs() for arm in arms)}
    for seed in seeds:
        data = pages_data(seed)
        for policy, inputs in inputs_by_policy.items():
            for decoding, scores in measure_memory(policy, inputs.protocol, data, questions).items():
                text = "  ".join(f"{name} {value:.2f}" for name, value in scores.items())
                print(f"seed {seed}, {inputs.protocol.name}, {decoding}: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
