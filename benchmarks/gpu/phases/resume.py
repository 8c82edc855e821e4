"""Measures whether a resumed training equals the killed one to the bit, and otherwise how far it deviates.

- `engine-...` runs veRL's engine alone. It makes a step, saves, and makes another one; a new engine loads the
  checkpoint and repeats the second step.
- `training` kills the demo's GRPO with SIGKILL once its second step is saved, and repeats that step from the
  checkpoint of the first. A resumed vLLM draws other tokens than one that has already generated a step. The
  weights are therefore compared with the checkpoint of the killed run, to measure the difference, and the
  metrics of both second steps are kept.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu import trainings
from benchmarks.gpu.cells import Cell
from benchmarks.gpu.models import check_models, model_folder, shape_for
from benchmarks.gpu.plan import Plan
from rag_r1.inference.model_folders import TRACKER
from rag_r1.io.atomic_files import move_into_place, write_text

TITLE = "Kill and resume"
_RECIPES = {"lora": "hardware/one_gpu_24_grpo", "nf4": "hardware/one_gpu_24_nf4", "full": "rag_r1/grpo"}
_SAVED = "actor_rollout_ref.actor.checkpoint.{}_contents=[model,optimizer,extra]"
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
    saved = [_SAVED.format(way) for way in ("save", "load")]
    config = compose(plan, _RECIPES[kind], model_folder(plan, size), *saved)
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
    loaded = resumed.trained()
    resumed_norm = resumed.step(token_rows, length)
    state = compared(before, loaded)
    return {"loaded": state, "norms": [norm, resumed_norm], **compared(after, resumed.trained(), before)}


def _training(plan: Plan, cell: Cell, folder: Path) -> dict[str, Any]:
    """Kill a training after step 2, resume it from step 1, and compare both second steps."""
    from rag_r1.demo.run import train

    checkpoints, metrics = folder / "checkpoints", folder / "metrics.jsonl"
    with trainings.training_command(plan, cell, folder) as command:
        _train_and_kill(command, folder, 2)
        killed = trainings.metrics_by_step(metrics)
        original = folder / "straight"
        move_into_place(checkpoints / "global_step_2", original)
        for later in checkpoints.glob("global_step_3"):
            shutil.rmtree(later)
        write_text(checkpoints / TRACKER, "1")
        train(command, folder, 3600)
    resumed = trainings.metrics_by_step(metrics)
    first, one, two = (
        _weights(path) for path in (checkpoints / "global_step_1", original, checkpoints / "global_step_2")
    )
    return {"steps": {"killed": killed.get("2"), "resumed": resumed.get("2")}, **compared(one, two, first)}


def _train_and_kill(command: Sequence[str], folder: Path, step: int) -> None:
    """Start a training, and kill it with SIGKILL once a step's checkpoint is complete and its line is logged.

    Raises RuntimeError if the training ends before that.
    """
    import psutil

    from rag_r1.system.child_processes import SESSION, end, start
    from rag_r1.training.checkpoint_steps import last_whole_step

    metrics = folder / "metrics.jsonl"
    environment = {**os.environ, "VERL_FILE_LOGGER_PATH": str(metrics)}
    environment.pop("RAY_ADDRESS", None)

    def is_done() -> bool:
        saved = last_whole_step(folder / "checkpoints") or 0
        return saved >= step and bool(trainings.metrics_by_step(metrics).get(str(step)))

    with (folder / "killed.log").open("w") as log:
        process = start(command, log, environment)
        try:
            while not is_done():
                if process.poll() is not None:
                    raise RuntimeError(f"the training ended before step {step}: see {folder / 'killed.log'}")
                time.sleep(0.05)
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for child in children:  # all are killed together, as when a machine is lost
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=60)
        finally:
            end(process, SESSION)  # waits for the process itself


def _weights(checkpoint: Path) -> dict[str, Any]:
    """Load the weights of a checkpoint, by name."""
    import torch
    import torch.distributed.tensor  # the class of the tensors that FSDP2 saves

    [file] = checkpoint.rglob("model_world_size_1_rank_0.pt")
    saved = torch.load(file, map_location="cpu", weights_only=True)
    return {name: value.to_local() if hasattr(value, "to_local") else value for name, value in saved.items()}


def compared(
    one: Mapping[str, Any], two: Mapping[str, Any], before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return how many tensors are equal to the bit, and the largest difference.

    With `before`, the common origin of both, the result also has the norm of the difference as a share of the
    norm of the change.
    """
    import torch

    equal = sum(torch.equal(value, two[name]) for name, value in one.items())
    gaps = {name: (value.double() - two[name].double()) for name, value in one.items()}
    figures: dict[str, Any] = {"tensors": len(one), "equal": equal}
    figures["largest"] = max(float(gap.abs().max()) for gap in gaps.values())
    if before is not None:
        change = sum(
            float((value.double() - before[name].double()).square().sum()) for name, value in one.items()
        )
        distance = sum(float(gap.square().sum()) for gap in gaps.values())
        figures["of_change"] = (distance / change) ** 0.5 if change else None
    return figures


def rows(cell: Cell, figures: dict[str, Any]) -> list[list[object]]:
    """Return the row of a cell."""
    share = figures["of_change"]
    of_change = "–" if share is None else f"{share:.1e}"
    equal = f"{figures['equal']}"
    return [[cell.label, figures["tensors"], equal, f"{figures['largest']:.1e}", of_change]]
