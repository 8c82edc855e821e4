"""Measures whether the guard finds planted faults, and whether a supervised training recovers from them.

    python benchmarks/guard.py --faults learning_rate --seeds 834962 336739 660845
    python benchmarks/guard.py --faults engine reward mask no_search --seeds 834962
    python benchmarks/guard.py --replay outputs/demo_seeds/*
    python benchmarks/guard.py --chance 100

Each run is the demo's GRPO on this CPU through `rag-r1 train --supervise`, with a checkpoint after every step
and a validation after every second one. Two faults are transient: they begin when the share of right held-out
answers has reached .7, and end with the first attempt. Three are permanent: a reward for searching alone, a
response mask that includes observations, and a reward that teaches the policy to stop searching. A finished
run is not repeated.

`--replay` counts false alarms: it passes the metrics of runs without a fault to the guard and the band (runs
of benchmarks/demo_seeds.py with `--set trainer.test_freq=2`). `--chance` counts false alarms in simulated
trainings of 60 steps that learn nothing and whose right answers are random.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rag_r1.config.guard import GuardOptions
from rag_r1.config.recipes import Recipe
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import number, print_table
from rag_r1.runs.processes import run_and_wait
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from rag_r1.training.guard.attempts import Attempts
from rag_r1.training.guard.bands import BandCheck, read_history
from rag_r1.training.guard.guard import Guard
from rag_r1.training.guard.history import History
from rag_r1.training.guard.signs import TrainingFacts
from rag_r1.training.metrics_files import MetricsFile, earlier_files

ROOT = Path(__file__).resolve().parents[1]
#: Share of right held-out answers from which a transient fault acts.
LEARNED = 0.7
TRANSIENT = ("learning_rate", "engine")
_SEARCHES = "term: 'benchmarks.guard_faults:searches', name: fault"
#: Permanent fault -> its overrides; LOOPS is replaced by the path of the agent loops' file.
PERMANENT = {
    "reward": [f"rag_r1.reward=[{{{_SEARCHES}, weight: 0.1}}]"],
    "no_search": [f"rag_r1.reward=[{{term: em, weight: 0.2}}, {{{_SEARCHES}, weight: -0.5}}]"],
    "mask": ["actor_rollout_ref.rollout.agent.agent_loop_config_path=LOOPS"],
}
OVERRIDES = (
    "trainer.test_freq=2",
    "trainer.save_freq=1",
    "trainer.max_actor_ckpt_to_keep=2",
    "trainer.resume_mode=auto",
    "actor_rollout_ref.model.external_lib=benchmarks.guard_faults",
)


def run(fault: str, seed: int, folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the summary of one supervised training, from its folder if it is finished.

    Raises SystemExit if the training does not begin.
    """
    out = folder / f"{fault}-seed{seed}"
    result = out / "result.json"
    if not result.exists():
        out.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        error = _train(fault, seed, out, overrides)
        minutes = (time.monotonic() - started) / 60
        if not Attempts(out / "run").all:
            raise SystemExit(f"error: the training does not begin: {error}; see {out / 'train.log'}")
        result.write_text(
            json.dumps({**_summary(fault, seed, out), "error": error, "minutes": round(minutes, 1)})
        )
    return json.loads(result.read_text())


def _train(fault: str, seed: int, out: Path, overrides: Sequence[str]) -> str:
    """Run a training, and return its last error message, or an empty text if it succeeded."""
    protocol, flag, run_folder = demo_protocol("rag_r1_mq"), out / "fault", out / "run"
    write_demo(out / "data", protocol, seed)
    build_index(out / "data" / "corpus.jsonl", out / "index", "--backend", "bm25")
    loops = out / "agent_loops.yaml"
    loops.write_text("- {name: search_agent, _target_: benchmarks.guard_faults.UnmaskedAgentLoop}\n")
    with retrieval_process(out / "index", out / "server.log") as url:
        command = [sys.executable, "-m", "rag_r1.cli", "train", "--recipe", "demo/grpo", "--supervise"]
        command += [
            *OVERRIDES,
            f"data.train_files={out / 'data' / 'train.parquet'}",
            f"data.val_files={out / 'data' / 'val.parquet'}",
            f"data.seed={seed}",
            f"actor_rollout_ref.model.path={policy_path('rag_r1_mq')}",
            f"rag_r1.retriever.url={url}",
            f"trainer.default_local_dir={run_folder}",
            *(override.replace("LOOPS", str(loops)) for override in PERMANENT.get(fault, ())),
            *overrides,
        ]
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "VERL_ENGINE_VENDOR": "faulty",  # chooses FaultyLMHead of guard_faults.py
            "GUARD_FAULT": str(flag),
        }
        try:
            watch = _fault_planter(fault, run_folder, flag) if fault in TRANSIENT else None
            run_and_wait(command, log=out / "train.log", environment=environment, watch=watch)
        except RunError:
            lines = (out / "train.log").read_text(errors="replace").splitlines()
            errors = [line for line in lines if line.startswith("error: ")]
            return errors[-1] if errors else "ended without a message"
    return ""


def _fault_planter(fault: str, run_folder: Path, flag: Path) -> Callable[[], None]:
    """Return a function that switches a transient fault on and off; the training calls it again and again.

    The fault is on while the file `flag` exists. The step at which it begins is written beside that file.
    """
    metrics, history = MetricsFile(run_folder / "metrics-1.jsonl"), History()

    def watch() -> None:
        """Plant the fault when the first attempt has learned enough, and remove it in the second attempt."""
        for step, values in metrics.new_lines():
            history.add(step, values)
            learned = len(history.held_out) and history.held_out.values[-1] >= LEARNED
            if learned and not flag.with_suffix(".step").exists():
                flag.with_suffix(".step").write_text(str(step))
                flag.write_text(fault)
        if (run_folder / "metrics-2.jsonl").exists():
            flag.unlink(missing_ok=True)

    return watch


def _summary(fault: str, seed: int, out: Path) -> dict[str, Any]:
    """Summarise a training: when its fault was planted and flagged, and the shares of right answers.

    The shares are the `best` and the `last_before` the first attempt was flagged, the one `at_flag`, and the
    `final` one of the last attempt. A figure that does not exist is None.
    """
    run_folder = out / "run"
    attempts = Attempts(run_folder).all
    first = History()
    for step, values in MetricsFile(run_folder / attempts[0].metrics).new_lines():
        first.add(step, values)
    signs = [sign for sign in attempts[0].signs if sign["verdict"] != "WARN"]
    flagged = signs[0]["step"] if signs else None
    planted = out / "fault.step"
    held_out = dict(zip(first.held_out.steps, first.held_out.values, strict=True))
    before = [value for step, value in held_out.items() if flagged is None or step < flagged]
    final = read_history(run_folder).held_out
    return {
        "fault": fault,
        "seed": seed,
        "planted": int(planted.read_text()) if planted.exists() else None,
        "flagged": flagged,
        "cause": signs[0]["cause"] if signs else "",
        "warnings": [
            f"step {s['step']}: {s['cause']}" for a in attempts for s in a.signs if s["verdict"] == "WARN"
        ],
        "best": max(before, default=None),
        "last_before": before[-1] if before else None,
        "at_flag": held_out.get(flagged),
        "attempts": len(attempts),
        "endings": [attempt.ending for attempt in attempts],
        "final": final.values[-1] if len(final) else None,
    }


#: The columns of a training's row; the shares of right held-out answers are those of `_summary`.
HEAD = [
    "fault",
    "seed",
    "acts after",
    "flagged",
    "cause",
    "held out: best",
    "before",
    "then",
    "attempts",
    "at the end",
]


def row(result: dict[str, Any]) -> list[object]:
    """Return the cells of a training's row in the table."""
    shares = [number(result[name], 2) for name in ("best", "last_before", "at_flag")]
    steps = ["–" if result[name] is None else result[name] for name in ("planted", "flagged")]
    end = "stopped" if result["error"] else number(result["final"], 2)
    return [result["fault"], result["seed"], *steps, result["cause"] or "–", *shares, result["attempts"], end]


def replay_row(run_folder: Path) -> list[object]:
    """Return the row of a run without a fault: its last step, and the signs and the band that it shows."""
    # The rewards, the batch and the KL of recipes/demo/grpo.
    facts = TrainingFacts({"em": 1.0, "turn_cost": -0.05}, questions=16, is_first_kl_zero=True)
    guard = Guard(GuardOptions(), facts)
    band, signs = BandCheck.of_recipe(Recipe.find("demo/grpo")), []
    assert band is not None
    for file in earlier_files(run_folder) or [run_folder / "metrics.jsonl"]:
        for step, metrics in MetricsFile(file).new_lines():
            signs += [f"step {step}: {sign.cause}" for sign in guard.see(step, metrics)]
            band.see(step, metrics)
    return [run_folder.name, guard.history.step, "; ".join(signs) or "none", band.summary().partition(":")[0]]


def chance_row(questions: int, agreeing: int, runs: int) -> list[object]:
    """Return the row with the number of simulated trainings, of `runs`, in which a sign appears by chance.

    It has `questions`, `agreeing`, and a count for each of four shares of right answers. A step has
    `questions` questions with eight answers each, which are right or wrong in groups of `agreeing`.
    """
    independent, counts = questions * 8 // agreeing, []
    for share in (0.1, 0.3, 0.5, 0.8):
        draws, alarms = random.Random(0), 0
        for _ in range(runs):
            guard = Guard(GuardOptions(), TrainingFacts(questions=questions))
            right = [sum(draws.random() < share for _ in range(independent)) / independent for _ in range(60)]
            lines = [{"search/right": value, "search/score": value} for value in right]
            alarms += any(guard.see(step, line) for step, line in enumerate(lines, 1))
        counts.append(alarms)
    return [questions, agreeing, *counts]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table of trainings with planted faults, of replayed runs, or of simulated trainings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--faults", nargs="+", choices=[*TRANSIENT, *PERMANENT], help="faults to plant")
    choice.add_argument("--replay", nargs="+", type=Path, metavar="RUN", help="folders of finished demo runs")
    choice.add_argument(
        "--chance", type=int, metavar="RUNS", help="trainings of each kind that learn nothing"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="of the trainings (default 0)")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "guard", help="folder of the runs")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="overrides of every run")
    args = parser.parse_args(argv)
    if args.chance is not None and args.chance < 1:
        parser.error("--chance must be 1 or more")
    if args.replay:
        print_table(["run", "last step", "signs", "band"], map(replay_row, args.replay), "lrll")
        return
    if args.chance:
        head = ["questions", "answers that agree", "right .1", ".3", ".5", ".8"]
        kinds = [(questions, agreeing) for questions in (8, 16, 64) for agreeing in (1, 2, 8)]
        print_table(head, (chance_row(*kind, args.chance) for kind in kinds), "rrrrrr")
        return
    results = [run(fault, seed, args.out.resolve(), args.set) for fault in args.faults for seed in args.seeds]
    print_table(HEAD, map(row, results), "lrrrlrrrrr")
    for result in results:
        for warning in result["warnings"]:
            print(f"{result['fault']}, seed {result['seed']}: warning: {warning}")


if __name__ == "__main__":
    main()
