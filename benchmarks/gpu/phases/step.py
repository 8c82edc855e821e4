"""Measures a whole step of a recipe of real size: recipes/hardware/one_gpu_80_grpo with 7 billion parameters.

The step has 80 trajectories on the demo's questions. A policy with random weights never stops, so every turn
has its full length, and the step takes longer than that of a policy that has learned to stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu import trainings
from benchmarks.gpu.cells import Cell
from benchmarks.gpu.models import check_models
from benchmarks.gpu.plan import Plan

TITLE = "A step of 80 trajectories"
HEAD = trainings.HEAD
_RECIPE, _SIZE = "hardware/one_gpu_80_grpo", "7B"
#: 16 questions with five trajectories each, and two updates.
_STEP = (
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "data.val_max_samples=4",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
    "trainer.total_training_steps=1",
    # By default veRL checks only every two seconds whether a batch is ready.
    "++trainer.v1.sampler.sampler_kwargs.poll_interval=0.1",
)


def groups(plan: Plan) -> list[list[Cell]]:
    """Return the only cell, which is a training of the demo in the miniature."""
    if plan.miniature:
        small = (*trainings.SMALL, "trainer.total_training_steps=2")
        label = "the demo's policy, recipes/demo/grpo"
        return [[trainings.training_cell("step", "demo", label, "demo/grpo", small)]]
    label = f"{_SIZE}, recipes/{_RECIPE}"
    return [[trainings.training_cell("step", _SIZE, label, _RECIPE, _STEP, _SIZE)]]


def check(plan: Plan) -> None:
    """Raise RunError if the model is missing."""
    check_models(plan, set() if plan.miniature else {_SIZE})


def measure(plan: Plan, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Yield the metrics of the step and the peak of memory."""
    for cell in cells:
        yield trainings.run_training(plan, cell, plan.out / "runs" / "step")


def rows(cell: Cell, figures: dict[str, Any]) -> list[list[object]]:
    """Return the row of the training."""
    return [trainings.training_row(cell.label, figures)]
