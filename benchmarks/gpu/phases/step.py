"""One whole step of a recipe of real size: recipes/hardware/one_gpu_80_grpo with 7 billion parameters.

80 trajectories with the demo's questions. Random weights do not stop, so every turn has its full length: a
step takes longer than one of a policy that has learned to stop.
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
    # veRL looks every two seconds whether a batch is there.
    "++trainer.v1.sampler.sampler_kwargs.poll_interval=0.1",
)


def groups(plan: Plan) -> list[list[Cell]]:
    """The one cell; the miniature's is a step of the demo."""
    if plan.miniature:
        small = (*trainings.SMALL, "trainer.total_training_steps=2")
        what = "the demo's policy, recipes/demo/grpo"
        return [[trainings.training_cell("step", "demo", what, "demo/grpo", small)]]
    what = f"{_SIZE}, recipes/{_RECIPE}"
    return [[trainings.training_cell("step", _SIZE, what, _RECIPE, _STEP, _SIZE)]]


def check(plan: Plan) -> None:
    """Raises RunError for a model that is missing."""
    check_models(plan, set() if plan.miniature else {_SIZE})


def measure(plan: Plan, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """The split of the step, tokens a second and the peak."""
    for cell in cells:
        yield trainings.run_training(plan, cell, plan.out / "runs" / "step")


def rows(cell: Cell, figures: dict[str, Any]) -> list[list[object]]:
    return [trainings.training_row(cell.what, figures)]
