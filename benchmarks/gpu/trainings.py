"""Runs whole trainings through veRL, Ray and vLLM on the demo's questions, and reads the metrics of steps.

The folder of a training has the demo's world and its index, the logs of the retrieval server and of the
training, the checkpoints and veRL's metrics. Existing data and indexes are used again, so that after a kill a
training resumes from its last checkpoint if its recipe allows it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.cells import Cell
from benchmarks.gpu.made import made_once
from benchmarks.gpu.memory_use import TrainingMeter
from benchmarks.gpu.models import PROTOCOL, model_folder
from benchmarks.gpu.plan import Plan
from rag_r1.config.recipes import Recipe
from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import train
from rag_r1.demo.world import demo_protocol, write_demo
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from rag_r1.training.metrics_files import MetricsFile

#: Prefixes of the metrics that are kept for each step.
_KEPT = ("timing_s/", "perf/", "training/rollout_probs_diff", "search/score", "search/searches", "actor/grad")
_KEPT += ("search/logprob_gap", "actor/pg_loss", "actor/lr", "response_length/mean")
#: Seconds after which a hanging training is ended; the minutes of a phase usually end before.
_AT_MOST_S = 3600.0
#: Overrides for few processes, since each takes seconds to start.
FEW = (
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "reward.num_workers=1",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "actor_rollout_ref.rollout.enforce_eager=true",
)
#: Overrides for a small step of the demo without validation, as in tests/e2e/demo_training.py.
SMALL = (
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=8",
    "data.val_max_samples=4",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
)
#: Overrides with which vLLM's log-probs are compared with those of the actor.
COMPARED = (
    "actor_rollout_ref.rollout.calculate_log_probs=true",
    "algorithm.rollout_correction.bypass_mode=false",
)


def training_cell(
    phase: str, name: str, label: str, recipe: str, overrides: Sequence[str], size: str | None = None
) -> Cell:
    """Return the cell of a training on the demo's questions, with the overrides FEW and COMPARED.

    `size` is the size of the model, or None for the demo's policy.
    """
    changes = [*FEW, *COMPARED, *overrides]
    return Cell(phase, name, label, {"recipe": recipe, "overrides": changes, "size": size})


@contextmanager
def training_command(plan: Plan, cell: Cell, folder: Path) -> Iterator[list[str]]:
    """Run the retrieval server of a cell's training, and yield veRL's command for the training.

    Raises RunError if the server does not start or the model is missing.
    """
    data, index = folder / "data", folder / "index"
    if not data.exists():
        with made_once(data) as part:
            write_demo(part, demo_protocol(PROTOCOL), seed=1)
    if not index.exists():
        with made_once(index) as part:
            build_index(data / "corpus.jsonl", part, "--backend", "bm25")
    size = cell.settings["size"]
    policy = model_folder(plan, size) if size else policy_path(PROTOCOL)
    with retrieval_process(index, folder / "server.log") as url:
        changes = [
            plan.platform,
            "trainer.n_gpus_per_node=1",
            f"data.train_files='{data / 'train.parquet'}'",
            f"data.val_files='{data / 'val.parquet'}'",
            f"actor_rollout_ref.model.path='{policy}'",
            f"rag_r1.protocol={PROTOCOL}",
            f"rag_r1.retriever.url={url}",
            f"rag_r1.trajectory_dir='{folder / 'trajectories'}'",
            f"trainer.default_local_dir='{folder / 'checkpoints'}'",
            f"hydra.run.dir='{folder / 'hydra'}'",
            "trainer.logger=[console,file]",
        ]
        yield Recipe.find(cell.settings["recipe"]).command([*changes, *cell.settings["overrides"]])


def run_training(plan: Plan, cell: Cell, folder: Path) -> dict[str, Any]:
    """Run the training of a cell, and return its figures.

    Raises RunError, with the end of its log, if it fails.
    """
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # FlashInfer compiles at its first use
    folder.mkdir(parents=True, exist_ok=True)
    with training_command(plan, cell, folder) as command, TrainingMeter() as meter:
        train(command, folder, _AT_MOST_S)
    steps = metrics_by_step(folder / "metrics.jsonl")
    return {"steps": steps, "peak": meter.peak, "timeline": meter.timeline}


def metrics_by_step(metrics: Path) -> dict[str, dict[str, float]]:
    """Return the metrics by step: those with a prefix in _KEPT, and the held-out exact match."""
    steps: dict[str, dict[str, float]] = {}
    for step, values in MetricsFile(metrics).new_lines():
        kept = {
            key: value
            for key, value in values.items()
            if key.startswith(_KEPT) or (key.startswith("val-") and key.endswith("/em/mean@1"))
        }
        steps.setdefault(str(step), {}).update(kept)
    return steps


def step_median(figures: Mapping[str, Any], name: str) -> float | None:
    """Return the median of a metric over the steps that have it, or None if no step has it."""
    values = [step[name] for step in figures["steps"].values() if name in step]
    return median(values) if values else None


#: The columns of a training's row in a table.
HEAD = ("training", "steps", "a step, s", "generating", "log-probs", "reference", "update", "weights to vLLM",
        "tokens/s", "peak, GB", "difference of probability, mean", "largest",
        "of log-prob, largest")  # fmt: skip
#: The times in the columns from `a step, s` to `weights to vLLM`.
_TIMES = ("step", "gen", "old_log_prob", "ref", "update_actor", "update_weights")


def training_row(name: str, figures: Mapping[str, Any]) -> list[object]:
    """Return the row of a training, with medians over its steps."""

    def cell_of(metric: str, digits: int = 2) -> str:
        value = step_median(figures, metric)
        return "–" if value is None else f"{value:.{digits}f}"

    gaps = ("training/rollout_probs_diff_mean", "training/rollout_probs_diff_max", "search/logprob_gap_max")
    return [
        name,
        sum("timing_s/step" in step for step in figures["steps"].values()),
        *(cell_of(f"timing_s/{metric}") for metric in _TIMES),
        cell_of("perf/throughput", 0),
        f"{figures['peak'] / 1e9:.1f}",
        *(cell_of(metric, 6) for metric in gaps),
    ]
