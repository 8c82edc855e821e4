"""Runs R1-Searcher's two stages in miniature, to show what stage 1 teaches and what skipping it costs.

    python benchmarks/two_stages.py --seeds 0 1 2

For each seed the benchmark trains two arms in the demo's invented world, with real veRL, Ray, FSDP and vLLM
on this CPU:

    two stages    a policy that has never seen a search: stage 1, and then stage 2 from stage 1's model
    control       the same policy with stage 2 only, for as many steps as both stages together

Then it writes a page with a table and a picture of all seeds into the folder of the runs. (The page in
docs/results was written with `--results docs/results`.) The policy is the committed one; if it is missing, it
is trained first. Finished parts are not repeated: an interrupted benchmark resumes where it stopped, the
stages from their last checkpoint. R1-Searcher's own rule decides whether a search is well-formed: every query
must be opened, closed and answered, and no documents may be made up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rag_r1.agent.records import records_by_step, trajectory_of
from rag_r1.config.recipes import Recipe
from rag_r1.demo import r1_searcher_traces
from rag_r1.demo.policy import POLICIES, load_policy
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.simulate import run_rollouts
from rag_r1.demo.world import demo_data, demo_protocol, write_demo
from rag_r1.evaluation.report.estimates import known_mean
from rag_r1.options.command_exit import command_main
from rag_r1.rewards import RewardSum, token_f1
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from rag_r1.training.progress import train
from rag_r1.training.stages import exported_model, run_stages

# This folder has its own retrieval_server.py: look for packages in the project's root instead.
_here = Path(__file__).resolve().parent
sys.path[:] = [str(_here.parent)] + [entry for entry in sys.path if Path(entry).resolve() != _here]

from benchmarks.two_stages_report import CONTROL, PAGE, draw, table  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]

PROTOCOL = "r1_searcher"
STAGES = ("recipes/demo/r1_stage1", "recipes/demo/r1_stage2")
#: 1 for a trajectory with at least one well-formed search.
_SEARCHED = RewardSum.from_config([{"term": "r1_searcher_blocks", "least": 1}])


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of these trajectories.

    They are the shares with a well-formed search (`searched`) and with a name in the first query (`name`),
    and mean F1, EM and cover-EM.
    """
    searched = [_SEARCHED(trajectory_of(record), [])["score"] for record in records]
    terms = {"F1": "f1", "EM": "em", "cover-EM": "cover_em"}
    scores = {name: [r["rewards"][term] for r in records] for name, term in terms.items()}
    known = {name: [value for value in values if value is not None] for name, values in scores.items()}
    first_texts = [record["turns"][0]["text"] if record["turns"] else None for record in records]
    labels = [None if text is None else r1_searcher_traces.noted_contents(text) for text in first_texts]
    named = [label in ("a name", "every name") for label in labels]
    return {
        "searched": known_mean(searched),
        "name": known_mean(named),
        **{name: known_mean(values) for name, values in known.items()},
    }


def curve(folders: Sequence[Path], split: str) -> dict[int, dict[str, float]]:
    """Return the figures of one arm by step; the steps of a later stage continue the numbering."""
    points: dict[int, dict[str, float]] = {}
    before = 0
    for folder in folders:
        records = records_by_step(folder / "trajectories" / split)
        # The first validation of a later stage repeats the last one of the previous stage.
        points |= {
            before + step: summarise(step_records)
            for step, step_records in records.items()
            if before + step not in points
        }
        before += max(records, default=0)
    return points


def ensure_policy(folder: Path) -> Path:
    """Train the policy in `folder` unless it exists, which takes some minutes; returns the folder."""
    if not (folder / "config.json").exists():
        command = [sys.executable, "-m", "rag_r1.demo.warm_start", "--protocol", PROTOCOL]
        subprocess.run([*command, "--out", str(folder)], check=True, cwd=ROOT)
    return folder


@contextmanager
def prepared(out: Path, seed: int, policy: Path) -> Iterator[list[str]]:
    """Make a world and its index, and run a server; yields the overrides for a training in this world."""
    if not (out / "index" / "manifest.json").exists():
        write_demo(out / "data", demo_protocol(PROTOCOL), seed)
        build_index(out / "data" / "corpus.jsonl", out / "index", "--backend", "bm25")
    with retrieval_process(out / "index", out / "server.log") as url:
        yield [
            f"data.train_files={out / 'data' / 'train.parquet'}",
            f"data.val_files={out / 'data' / 'val.parquet'}",
            f"data.seed={seed}",
            f"actor_rollout_ref.model.path={policy}",
            f"rag_r1.retriever.url={url}",
        ]


def train_stage(log_folder: Path, timeout_s: float, recipe: str, overrides: Sequence[str]) -> int:
    """Run a veRL training with its log and metrics in `log_folder`; returns the exit status."""
    log_folder.mkdir(parents=True, exist_ok=True)
    try:
        train(Recipe.find(recipe).command(overrides), log_folder, timeout_s)
    except RunError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def sampled_f1(model: Path, seed: int, samples: int = 4) -> float:
    """Return the mean F1 of `samples` trajectories of each held-out question, in plain torch.

    The temperature is 1.
    """
    policy, tokenizer = load_policy(model)
    data = demo_data(seed)
    search = WorldSearch(data.passages, r1_searcher_traces.TOPK)
    torch.manual_seed(0)
    rollouts = [
        rollout
        for _ in range(samples)
        for rollout in run_rollouts(
            policy, tokenizer, demo_protocol(PROTOCOL), data.val, search, temperature=1.0
        )
    ]
    return known_mean([token_f1(rollout.trajectory.answer, rollout.question.gold) for rollout in rollouts])


def run(
    seed: int, out: Path, policy: Path, user_overrides: Sequence[str], timeout_s: float
) -> dict[str, Any]:
    """Train and measure both arms of a seed, unless that is done; returns the results.

    Raises RunError if a training fails.
    """
    finished = out / "results.json"
    arms = {
        "two stages": [out / "two_stages" / "stage1", out / "two_stages" / "stage2"],
        "control": [out / "control" / "stage1"],
    }
    if not finished.exists():
        started = time.monotonic()
        with prepared(out, seed, policy) as overrides:
            overrides = [*overrides, *user_overrides]
            print(f"seed {seed}: two stages")
            run_stages(
                STAGES, out / "two_stages", overrides, partial(train_stage, out / "log_stages", timeout_s)
            )
            steps = max(curve(arms["two stages"], "train"))
            print(f"seed {seed}: control, {steps} steps")
            overrides.append(f"stage1:trainer.total_training_steps={steps}")
            run_stages(
                STAGES[1:], out / "control", overrides, partial(train_stage, out / "log_control", timeout_s)
            )
        trained = [exported_model(folder / "checkpoints") for folders in arms.values() for folder in folders]
        models = dict(zip(("start", "stage 1", "stage 2", CONTROL), (policy, *trained), strict=True))
        results = {
            "seed": seed,
            "seconds": round(time.monotonic() - started),
            "stage1_steps": max(records_by_step(arms["two stages"][0] / "trajectories" / "train")),
            "held_out": {arm: curve(folders, "val") for arm, folders in arms.items()},
            "training": {arm: curve(folders, "train") for arm, folders in arms.items()},
            "sampled": {name: sampled_f1(model, seed) for name, model in models.items()},
        }
        finished.write_text(json.dumps(results, indent=2) + "\n")
    return json.loads(finished.read_text())


@command_main(RunError)
def main(argv: Sequence[str] | None = None) -> int:
    """Train both arms with each seed, and write the page; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--seeds",
        nargs="+",
        type=int,
        default=[0, 1, 2],
        help="seeds of the world, its questions and their order",
    )
    add("--out", type=Path, default=ROOT / "outputs" / "two_stages", help="output folder of the runs")
    add(
        "--results",
        type=Path,
        metavar="DIR",
        help="folder for two_stages.md and two_stages.png (default: --out)",
    )
    add(
        "--policy",
        type=Path,
        default=POLICIES / PROTOCOL,
        help="the policy to start from (default: the shipped one)",
    )
    add("--timeout", type=float, default=3600, metavar="SECONDS", help="time limit of each training")
    add(
        "--set",
        nargs="*",
        default=[],
        metavar="key=value",
        help="Hydra overrides; stage1:key=value for one stage",
    )
    args = parser.parse_args(argv)
    out, policy = args.out.resolve(), ensure_policy(args.policy.resolve())
    runs = [run(seed, out / f"seed{seed}", policy, args.set, args.timeout) for seed in args.seeds]
    command = " ".join(["python benchmarks/two_stages.py --seeds", *map(str, args.seeds)])
    command += f" --set {' '.join(args.set)}" if args.set else ""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {date.today()}"
    results = args.results or args.out
    results.mkdir(parents=True, exist_ok=True)
    page = PAGE.format(command=command, machine=machine, table=table(runs))
    (results / "two_stages.md").write_text(page, encoding="utf-8")
    draw(runs, results / "two_stages.png")
    print(f"\n{table(runs)}\n\nwritten: {results / 'two_stages.md'} and two_stages.png beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
