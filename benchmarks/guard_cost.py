"""Measures the CPU time of the signals and the guard, relative to that of a training step.

    python benchmarks/guard_cost.py outputs/demo/grpo

The benchmark reads a finished run with trajectories and metrics, and calls our functions again on its
records: the log-probs by part of a turn and the signals for every trajectory, the deviations of the groups,
and the guard and the band for every step. The CPU time of a step is taken as one core for the duration of the
step, although generation and update use all cores, so a share of the step's real CPU time is smaller. The
recall of the gold passages and the right answers are stand-ins, whose cost is not measured. Tokenizer,
protocol and band are those of demo/grpo, whatever the run.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from rag_r1.agent import Trajectory
from rag_r1.agent.records import records_by_step, trajectory_of
from rag_r1.agent.tokens.ledger import Span
from rag_r1.agent.tokens.signals import group_signals, part_logprobs, signals
from rag_r1.config.guard import GuardOptions
from rag_r1.config.recipes import Recipe
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol
from rag_r1.rewards.answer_metrics import exact_match
from rag_r1.runs.markdown import print_table
from rag_r1.training.guard.bands import BandCheck
from rag_r1.training.guard.guard import Guard
from rag_r1.training.metrics_files import MetricsFile, earlier_files


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of this process for the work."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark and print the costs in a step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a finished run of demo/grpo")
    args = parser.parse_args(argv)
    tokenizer, protocol = AutoTokenizer.from_pretrained(policy_path("rag_r1_mq")), demo_protocol("rag_r1_mq")
    folder = args.run / "trajectories" / "train"
    records = [trajectory_of(record) for step in records_by_step(folder).values() for record in step]
    files = earlier_files(args.run) or [args.run / "metrics.jsonl"]
    lines = [line for file in files for line in MetricsFile(file).new_lines()]
    # A validation before the training has a line, too.
    step_seconds = [metrics["timing_s/step"] for _, metrics in lines if "timing_s/step" in metrics]
    seconds, steps = sum(step_seconds), len(step_seconds)
    if not records or not seconds:
        parser.error(f"{args.run} has no trajectories/train or no metrics of steps; give a finished run")

    def spans_of(record: Trajectory) -> list[Span]:
        """Return the turns as spans, with invented log-probs, since records have none of single tokens."""
        ids = [tokenizer.encode(turn.text, add_special_tokens=False) for turn in record.turns]
        return [Span(tuple(tokens), True, i, (-0.1,) * len(tokens)) for i, tokens in enumerate(ids)]

    trajectories = [(record, spans_of(record)) for record in records]
    groups: dict[str, list[float]] = defaultdict(list)
    for record in records:
        groups[record.id.rpartition("#")[0]].append(record.rewards.get("score") or 0.0)
    guard, band = Guard(GuardOptions()), BandCheck.of_recipe(Recipe.find("demo/grpo"))
    assert band is not None
    costs = {
        "log-probs by part": lambda: [
            part_logprobs(record.turns, spans, protocol, tokenizer.decode) for record, spans in trajectories
        ],
        "signals": lambda: [
            (signals(record, lambda documents: 0.5), exact_match(record.answer, ["x"])) for record in records
        ],
        "groups": lambda: group_signals(groups),
        "guard and band": lambda: [(guard.see(*line), band.see(*line)) for line in lines],
    }
    used = {name: cpu_seconds(work) for name, work in costs.items()}
    rows = [[name, f"{1000 * cpu / steps:.1f}", f"{cpu / seconds:.3%}"] for name, cpu in used.items()]
    total = sum(used.values())
    rows.append(["all", f"{1000 * total / steps:.1f}", f"{total / seconds:.3%}"])
    sizes = f"{len(trajectories)} trajectories, {len(lines)} lines of metrics"
    print(f"{sizes}, steps of {seconds / steps:.1f} s")
    print_table(["", "CPU ms a step", "of the step"], rows)


if __name__ == "__main__":
    main()
