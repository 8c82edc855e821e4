"""Measures whether a resumed training equals the killed one to the bit, and otherwise how far it deviates.

- `engine-...` runs veRL's engine alone. It makes a step, saves, and makes another one; a new engine loads the
  checkpoint and repeats the second step.
- `training` kills the demo's GRPO with SIGKILL once its second step is saved, and repeats that step from the
  checkpoint of the first. A resumed vLLM draws other tokens than one that has already generated a step. The
  weights are therefore compared with the checkpoint of the killed run, to measure the difference, and the
  metrics of both second steps are kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import trainings
from benchmarks.gpu.cells import Cell
from benchmarks.gpu.models import check_models, model_folder, shape_for
from benchmarks.gpu.plan import Plan
from benchmarks.killed_training import compare, run_and_kill, tensors
from rag_r1.inference.model_folders import TRACKER
from rag_r1.io.atomic_files import move_into_place, write_text
from rag_r1.training.checkpoint_steps import last_whole_step

TITLE = "Kill and resume"
_RECIPES = {"lora": "hardware/one_gpu_24_grpo", "nf4": "hardware/one_gpu_24_nf4", "full": "rag_r1/grpo"}
#: Override for what a checkpoint has when it is saved, and when it is loaded.
_CONTENTS = "actor_rollout_ref.actor.checkpoint.{}_contents=[model,optimizer,extra]"
_TRAINING = (
    *trainings.SMALL,
    "trainer.total_training_steps=3",
    "trainer.save_freq=1",
    "trainer.resume_mode=auto",
)
HEAD = ("cell", "tensors", "equal to the bit", "largest difference", "of the change")


def _size(plan: Plan) -> str:
    return "tiny" if plan.miniature else "1.5B"


def groups(plan: Plan) -> list[list[Cell]]:
    """Return the cells; the engines come first, since they need neither Ray nor vLLM.

    The miniature has one of them.
    """
    kinds = ["lora"] if plan.miniature else list(_RECIPES)
    settings = {"size": _size(plan), "length": 64 if plan.miniature else 1024}
    engines = [[Cell("resume", f"engine-{kind}", f"veRL's engine alone, {kind}", settings)] for kind in kinds]
    label = "recipes/demo/grpo, killed"
    return [*engines, [trainings.training_cell("resume", "training", label, "demo/grpo", _TRAINING)]]


def check(plan: Plan) -> None:
    """Raise RunError if the model is missing."""
    check_models(plan, {_size(plan)})


def measure(plan: Plan, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each cell."""
    for cell in cells:
        folder = plan.out / "runs" / f"resume-{cell.name}"
        shutil.rmtree(folder, ignore_errors=True)  # an interrupted measurement starts again
        folder.mkdir(parents=True)
        if cell.name == "training":
            yield _training(plan, cell, folder)
        else:
            yield _engine(plan, folder, cell.name.partition("-")[2], cell.settings["length"])
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _engine(plan: Plan, folder: Path, kind: str, length: int) -> dict[str, Any]:
    """Compare a step after loading a checkpoint with the step of the engine that saved it."""
    from benchmarks.gpu.engine import LoneEngine, compose, random_rows

    size, checkpoint = _size(plan), str(folder / "checkpoints")
    contents = [_CONTENTS.format(direction) for direction in ("save", "load")]
    config = compose(plan, _RECIPES[kind], model_folder(plan, size), *contents)
    token_rows = random_rows(2, length, shape_for(size).vocabulary)
    original = LoneEngine(config)
    original.step(token_rows, length)
    original.engine.save_checkpoint(checkpoint, global_step=1)
    before = original.trained()
    norm = original.step(token_rows, length)
    after = original.trained()
    del original
    resumed = LoneEngine(config)
    resumed.engine.load_checkpoint(checkpoint, del_local_after_load=False)
    loaded = compare(before, resumed.trained())
    resumed_norm = resumed.step(token_rows, length)
    return {"loaded": loaded, "norms": [norm, resumed_norm], **compare(after, resumed.trained(), before)}


def _training(plan: Plan, cell: Cell, folder: Path) -> dict[str, Any]:
    """Kill a training after step 2, resume it from step 1, and compare both second steps."""
    from rag_r1.demo.run import train

    checkpoints, metrics = folder / "checkpoints", folder / "metrics.jsonl"
    with trainings.training_command(plan, cell, folder) as command:
        _train_and_kill(command, folder, 2)
        killed = trainings.metrics_by_step(metrics)
        killed_checkpoint = folder / "straight"
        move_into_place(checkpoints / "global_step_2", killed_checkpoint)
        shutil.rmtree(checkpoints / "global_step_3", ignore_errors=True)  # it may have been begun
        write_text(checkpoints / TRACKER, "1")
        train(command, folder, 3600)
    resumed = trainings.metrics_by_step(metrics)
    before, original, repeated = (
        tensors(path, "model")
        for path in (checkpoints / "global_step_1", killed_checkpoint, checkpoints / "global_step_2")
    )
    steps = {"killed": killed.get("2"), "resumed": resumed.get("2")}
    return {"steps": steps, **compare(original, repeated, before)}


def _train_and_kill(command: Sequence[str], folder: Path, step: int) -> None:
    """Start a training, and kill it once a step's checkpoint is complete and its line is logged."""
    metrics = folder / "metrics.jsonl"

    def is_done() -> bool:
        saved = last_whole_step(folder / "checkpoints") or 0
        return saved >= step and bool(trainings.metrics_by_step(metrics).get(str(step)))

    run_and_kill(command, folder / "killed.log", is_done, {"VERL_FILE_LOGGER_PATH": str(metrics)})


def rows(cell: Cell, figures: dict[str, Any]) -> list[list[object]]:
    """Return the row of a cell."""
    share = figures["of_change"]
    of_change = "–" if share is None else f"{share:.1e}"
    return [[cell.label, figures["tensors"], figures["equal"], f"{figures['largest']:.1e}", of_change]]
