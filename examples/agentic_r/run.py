"""Agentic-R in miniature: trains a retriever with the agent where similarity misleads.

    python -m examples.agentic_r.run --seeds 0 1 2

makes the agent's warm start (examples/agentic_r/warm_start.py) and an untrained encoder once, and for each
seed a world (examples/agentic_r/world.py), its questions and the first index. Then `rag-r1 iterate` runs
twice, with real trainings:

    loop      two rounds: agent, data, retriever, index, reload; and the agent once more
    control   the same agent trainings with the first index; up to the first retriever it is the same run

    OUT/warm-HASH, OUT/encoder       the agent's warm start, the untrained encoder
    OUT/seed0/data, index            the world and its first index
    OUT/seed0/loop, control          the loops, with rounds.md and rounds.png of their own
    OUT/seed0/loop.yaml, ...         their recipes
    OUT/agentic_r.md, agentic_r.png  the table and the picture of all seeds in the folder

What is finished is not repeated; what was interrupted goes on. `python -m examples.agentic_r.variants`
then compares retrievers with the same data and agent. (This is not in rag_r1/demo, on which the loop stands.)
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import model_validator

from examples.agentic_r.markdown import draw, markdown
from examples.agentic_r.recall import recall_of
from examples.agentic_r.warm_start import PROTOCOL, RECIPE, made_of, protocol, warm_start
from examples.agentic_r.world import TRAIN, MisleadingWorld, misleading_data, write_misleading_data
from examples.common.small_encoder import make_encoder
from rag_r1.config.recipes import RECIPES
from rag_r1.demo.run import OUTPUTS
from rag_r1.demo.world import PROMPT_FILE
from rag_r1.evaluation.report.report import write_text
from rag_r1.io.terminal_text import print_error
from rag_r1.iterate.commands import flag_words
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.runs.lock import hold_lock
from rag_r1.tools.retrieval.local_server import RetrievalProcessError, build_index

ARMS = ("loop", "control")
#: Until the first retriever both arms are the same run.
_SHARED = ("start", "round1/agent", "round1/agent_evaluation")
#: Questions of a world from which training data are made, and held-out ones.
DATA_QUESTIONS, HELD_OUT = 150, 150
#: Passages that are tried out for each search, and negatives of a row.
CANDIDATES, NEGATIVES = 6, 4
RETRIEVER_RECIPE = RECIPES / "agentic_r" / "retriever_demo.yaml"
DEFAULT_OUT = OUTPUTS / "agentic_r"
FINISHED = "arm.json"
_DESCRIPTION = """\
Train a retriever with the agent and the agent with the retriever (Agentic-R), on this machine and with
everything real and small: an invented world in which similarity misleads, the demo's policy, an encoder of
two layers, veRL, vLLM, the retrieval server. The control has the same trainings of the agent and keeps the
first index. Some twenty minutes a seed on two cores, and three for the agent's warm start. Run again, it goes
on where it was interrupted.
"""


class LoopError(RuntimeError):
    """A loop that did not end, or a folder of another form; the message says what to do."""


class MiniatureArguments(Arguments):
    """Which seeds, and where they are kept."""

    seeds: list[int] = argument("of the worlds and of their questions", ("SEED", ...), default=[0])
    arms: list[Literal["loop", "control"]] = argument(
        "which loops; control needs that of its seed", ("ARM", ...), default=["loop", "control"]
    )
    rounds: Positive = argument("rounds of the loop", "K", default=2)
    out: Path = argument("folder of the comparison", "DIR", default=DEFAULT_OUT)

    @model_validator(mode="after")
    def _each_once(self) -> MiniatureArguments:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("--seeds: each once")
        return self


def hold_folder(out: Path) -> AbstractContextManager[None]:
    """Holds the folder of the comparison for this process; LoopError if another has it."""
    return hold_lock(
        out, LoopError(f"{out} is in use by another process: wait for it, or choose another --out")
    )


def runs_hash() -> str:
    """What a run depends on besides its seed, as a short hash: the warm start, how many questions, and the
    recipes. Runs of another form are in no common table."""
    sizes = [DATA_QUESTIONS, HELD_OUT, CANDIDATES, NEGATIVES, TRAIN]
    recipes = [path.read_text(encoding="utf-8") for path in (RECIPE, RETRIEVER_RECIPE)]
    return hashlib.sha256(json.dumps([made_of(), sizes, recipes]).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class LoopInputs:
    """What the loops of a seed stand on. `folder`: of the seed."""

    folder: Path
    policy: Path
    encoder: Path

    @classmethod
    def of(cls, out: Path, seed: int) -> LoopInputs:
        """Makes what is not there. Raises LoopError if the folder holds another form of the world."""
        folder = (out / f"seed{seed}").resolve()
        made, form = folder / "made_of", runs_hash()
        if made.exists() and made.read_text(encoding="utf-8").strip() != form:
            raise LoopError(f"{folder} holds another form of this world: choose another --out")
        policy = warm_start(out / f"warm-{made_of()}")
        encoder = make_encoder(out / "encoder")
        if not made.exists():
            write_misleading_data(folder / "data", protocol(), seed, DATA_QUESTIONS, HELD_OUT)
            write_text(made, f"{form}\n")
        if not (folder / "index" / "manifest.json").exists():
            shutil.rmtree(folder / "index", ignore_errors=True)
            options = ("--backend", "dense", "--encoder", str(encoder), "--device", "cpu")
            build_index(folder / "data" / "corpus.jsonl", folder / "index", *options)
        return cls(folder, policy.resolve(), encoder.resolve())

    def recipe(self, arm: str, seed: int) -> Path:
        """Write the recipe of an arm; returns its file."""
        path = self.folder / f"{arm}.yaml"
        write_text(path, yaml.safe_dump(self.plan(arm, seed), sort_keys=False))
        return path

    def plan(self, arm: str, seed: int) -> dict[str, Any]:
        """The recipe of an arm, as `rag-r1 iterate` reads it."""
        data = self.folder / "data"
        plan: dict[str, Any] = {
            "agent": {
                "model": str(self.policy),
                "recipe": str(RECIPE),
                "start": "previous",
                "protocol": PROTOCOL,
                "keys": agent_keys(),
                "overrides": [
                    f"data.train_files={data / 'train.parquet'}",
                    f"data.val_files={data / 'val.parquet'}",
                    # Each round begins its trainings anew, with other questions first.
                    f"data.seed={seed + 1}{{round}}",
                ],
            },
            "index": {
                "first": str(self.folder / "index"),
                "corpus": [str(data / "corpus.jsonl")],
                "options": {"device": "cpu"},
            },
            "server": {"options": ["--device", "cpu"]},
            "evaluation": {"questions": [str(data / "val.parquet")], "options": limits()},
        }
        if arm == "loop":
            plan["data"] = {
                "questions": [str(data / "scored.parquet")],
                "options": limits() | {"candidates": CANDIDATES, "negatives": NEGATIVES, "seed": seed},
            }
            plan["retriever"] = {
                "recipe": str(RETRIEVER_RECIPE),
                "options": {"model": str(self.encoder), "seed": seed},
                "query": "agentic",
            }
        return plan


def limits() -> dict[str, Any]:
    """Options of `rag-r1 eval` and `rag-r1 retriever data`: the prompt and the limits of the recipe."""
    data = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))["data"]
    return {
        "prompt": str(PROMPT_FILE),
        "max_prompt_tokens": data["max_prompt_length"],
        "max_response_tokens": data["max_response_length"],
        "in_flight": 32,
    }


def agent_keys() -> list[str]:
    """Keys of the block rag_r1 wherever the agent plays: those of the recipe."""
    settings = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))["rag_r1"]
    return [
        f"rag_r1.{section}.{name}={value}"
        for section in ("agent", "retriever")
        for name, value in settings[section].items()
    ]


def eval_words() -> list[str]:
    """Both as words of `rag-r1 eval`."""
    return [*flag_words(limits()), *agent_keys()]


def encoder_options(ground: LoopInputs, seed: int) -> list[str]:
    """Words of `rag-r1 retriever train` that say which encoder is trained, and how."""
    return ["--recipe", str(RETRIEVER_RECIPE), "--model", str(ground.encoder), "--seed", str(seed)]


def run_arm(ground: LoopInputs, arm: str, seed: int, rounds: int) -> None:
    """Run the loop of an arm, if that is not done. Raises LoopError."""
    out = ground.folder / arm
    for name in (arm, *(["loop"] if arm == "control" else [])):
        finished = ground.folder / name / FINISHED
        had = json.loads(finished.read_text(encoding="utf-8"))["rounds"] if finished.exists() else rounds
        if had != rounds:
            raise LoopError(f"{finished.parent} has {had} rounds, not {rounds}: choose another --out")
    if (out / FINISHED).exists():
        return
    if arm == "control":
        _share(ground.folder / "loop", out)
    # The agent is trained once more after the last round, so the control has a round more.
    count = rounds if arm == "loop" else rounds + 1
    words = ["--recipe", str(ground.recipe(arm, seed)), "--rounds", str(count), "--out", str(out)]
    print(f"seed {seed}: {arm}", flush=True)
    status = subprocess.run([sys.executable, "-m", "rag_r1.cli", "iterate", *words]).returncode
    if status:
        raise LoopError(f"the loop of {out} ended with status {status} (see above); start again")
    rows = json.loads((out / "rounds.json").read_text(encoding="utf-8"))["rows"]
    told = {"arm": arm, "seed": seed, "made_of": runs_hash(), "rounds": rounds, "rows": rows}
    write_text(out / FINISHED, json.dumps(told, indent=2) + "\n")


def _share(loop: Path, control: Path) -> None:
    """Copy the steps that both arms have in common, if they are not there."""
    if control.exists():
        return
    if not (loop / FINISHED).exists():
        raise LoopError(f"{loop} is not finished, and the control begins with its first steps: --arms loop")
    part = control.with_name("control.part")
    shutil.rmtree(part, ignore_errors=True)
    for name in _SHARED:
        shutil.copytree(loop / name, part / name, symlinks=True)
    part.rename(control)


def measure_recall(ground: LoopInputs, seed: int, rounds: int) -> dict[str, dict[str, float]]:
    """Recall of the passages that state the held-out facts, by index: the first, and that of each round."""
    path = ground.folder / "recall.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    data, _, test = worlds(seed)
    found = {"first": recall_of(ground.folder / "index", data.val, test, "plain")}
    for number in range(1, rounds + 1):
        index = ground.folder / "loop" / f"round{number}" / "index" / "index"
        found[f"round {number}"] = recall_of(index, data.val, test, "agentic")
    write_text(path, json.dumps(found, indent=2) + "\n")
    return found


def worlds(seed: int) -> tuple[Any, MisleadingWorld, MisleadingWorld]:
    """The data of a seed, its train and its test world."""
    return misleading_data(seed, DATA_QUESTIONS, HELD_OUT)


def finished_runs(out: Path) -> list[dict[str, Any]]:
    """The loops of this form that are in the folder, by seed and arm, with the recall of the seed's
    indexes."""
    runs = []
    for path in out.glob(f"seed*/*/{FINISHED}"):
        run = json.loads(path.read_text(encoding="utf-8"))
        if run["made_of"] != runs_hash():
            continue
        measured = path.parents[1] / "recall.json"
        recall = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else {}
        runs.append(run | {"recall": recall})
    return sorted(runs, key=lambda run: (run["seed"], ARMS.index(run["arm"])))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when the page is written, 1 with the reason if not."""
    given = read_arguments(
        MiniatureArguments,
        arguments,
        prog="python -m examples.agentic_r.run",
        description=_DESCRIPTION,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with hold_folder(given.out):
            for seed in given.seeds:
                ground = LoopInputs.of(given.out, seed)
                for arm in sorted(given.arms, key=ARMS.index):
                    run_arm(ground, arm, seed, given.rounds)
                if (ground.folder / "loop" / FINISHED).exists():
                    measure_recall(ground, seed, given.rounds)
    except (LoopError, RetrievalProcessError) as error:
        print_error(error)
        return 1
    runs = finished_runs(given.out)
    text = markdown(runs)
    write_text(given.out / "agentic_r.md", text + "\n")
    draw(runs, given.out / "agentic_r.png")
    print(f"\n{text}\n\nwritten: {given.out / 'agentic_r.md'}, and agentic_r.png beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
