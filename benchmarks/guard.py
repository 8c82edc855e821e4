"""Does the guard find planted faults, and does a supervised training recover from them?

    python benchmarks/guard.py --faults learning_rate --seeds 834962 336739 660845
    python benchmarks/guard.py --faults engine reward mask no_search --seeds 834962
    python benchmarks/guard.py --replay outputs/demo_seeds/*
    python benchmarks/guard.py --chance 100

Each is the demo's GRPO on this CPU through `rag-r1 train --supervise`, with a checkpoint in every step and
a validation in every second one. Two faults are transient: they begin when right answers held out have
reached .7, and end with the first attempt. Three are permanent: a reward for searching alone, a response mask
that lets observations be trained on, and a reward that teaches to stop searching. A run whose folder is
finished is not repeated. `--replay` counts false alarms: it gives the guard and the band the metrics of runs
that went undisturbed (of benchmarks/demo_seeds.py with `--set trainer.test_freq=2`). `--chance` counts them
in trainings of 60 steps that learn nothing, whose right answers are drawn by chance.
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
#: Right answers held out from which a transient fault acts.
LEARNED = 0.7
TRANSIENT = ("learning_rate", "engine")
_SEARCHES = "benchmarks.guard_faults:searches"
PERMANENT = {
    "reward": [f"rag_r1.reward=[{{term: '{_SEARCHES}', weight: 0.1}}]"],
    "no_search": [f"rag_r1.reward=[{{term: em, weight: 0.2}}, {{term: '{_SEARCHES}', weight: -0.5}}]"],
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
    """What happened in one supervised training, from its folder if it is finished."""
    out = folder / f"{fault}-seed{seed}"
    result = out / "result.json"
    if not result.exists():
        out.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        error = _train(fault, seed, out, overrides)
        minutes = (time.monotonic() - started) / 60
        result.write_text(
            json.dumps({**_summary(fault, seed, out), "error": error, "minutes": round(minutes, 1)})
        )
    return json.loads(result.read_text())


def _train(fault: str, seed: int, out: Path, overrides: Sequence[str]) -> str:
    """Train; returns the error with which the training ended, or an empty text."""
    protocol, flag, run_folder = demo_protocol("rag_r1_mq"), out / "fault", out / "run"
    write_demo(out / "data", protocol, seed)
    build_index(out / "data" / "corpus.jsonl", out / "index", "--backend", "bm25")
    loops = out / "agent_loops.yaml"
    loops.write_text("- {name: search_agent, _target_: benchmarks.guard_faults.UnmaskedAgentLoop}\n")
    with retrieval_process(out / "index", out / "server.log") as url:
        command = [
            sys.executable,
            "-m",
            "rag_r1.cli",
            "train",
            "--recipe",
            "demo/grpo",
            "--supervise",
            *OVERRIDES,
        ]
        command += [
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
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "VERL_ENGINE_VENDOR": "faulty",
            "GUARD_FAULT": str(flag),
        }
        try:
            watch = _planting(fault, run_folder, flag) if fault in TRANSIENT else None
            run_and_wait(command, log=out / "train.log", environment=environment, watch=watch)
        except RunError:
            lines = (out / "train.log").read_text(errors="replace").splitlines()
            return next(
                (line for line in reversed(lines) if line.startswith("error: ")), "ended without a message"
            )
    return ""


def _planting(fault: str, run_folder: Path, flag: Path) -> Callable[[], None]:
    """Makes the fault's file when enough is learned in the first attempt, and removes it after that."""
    metrics, history = MetricsFile(run_folder / "metrics-1.jsonl"), History()

    def watch() -> None:
        """Plant the fault when the training has learned, and take it away when it starts again."""
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
    """What became of a training with a planted fault: when it was planted and flagged, and the EM."""
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
    """The cells of one line of the table."""
    shares = [number(result[name], 2) for name in ("best", "last_before", "at_flag")]
    steps = ["–" if result[name] is None else result[name] for name in ("planted", "flagged")]
    end = "stopped" if result["error"] else number(result["final"], 2)
    return [result["fault"], result["seed"], *steps, result["cause"] or "–", *shares, result["attempts"], end]


def replay_row(run_folder: Path) -> list[object]:
    """The signs and the band of a run that went undisturbed."""
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
    """In how many of `runs` trainings chance shows a sign, for four shares of right answers. Of a question's
    eight answers so many agree."""
    answers, counts = questions * 8 // agreeing, []
    for share in (0.1, 0.3, 0.5, 0.8):
        draws, shown = random.Random(0), 0
        for _ in range(runs):
            guard = Guard(GuardOptions(), TrainingFacts(questions=questions))
            right = [sum(draws.random() < share for _ in range(answers)) / answers for _ in range(60)]
            lines = [{"search/right": value, "search/score": value} for value in right]
            shown += any([guard.see(step, line) for step, line in enumerate(lines, 1)])
        counts.append(shown)
    return [questions, agreeing, *counts]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table of trainings with planted faults, of replayed runs, or of chance."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--faults", nargs="+", choices=[*TRANSIENT, *PERMANENT])
    what.add_argument("--replay", nargs="+", type=Path, metavar="RUN", help="folders of finished demo runs")
    what.add_argument("--chance", type=int, metavar="RUNS", help="trainings of each kind that learn nothing")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "guard", help="folder of the runs")
    parser.add_argument("--set", nargs="*", default=[], metavar="key=value", help="overrides of every run")
    args = parser.parse_args(argv)
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
