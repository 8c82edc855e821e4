"""Compares adapters over weights in nf4 with adapters over bf16, with 1.5 billion parameters.

- `engine-...` runs veRL's engine alone. Its log-probs are compared with those of transformers' model in 32
  bits, with exactly the weights and adapters that vLLM would receive.
- `training-...` makes three steps through veRL and vLLM, which sleeps during every update. The difference of
  probability in the second and the third step shows whether vLLM wakes with the weights of the actor.
- `sleep` runs vLLM alone, with weights in bf16.

The miniature has only the engines, since vLLM on a CPU does not sleep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.gpu import trainings
from benchmarks.gpu.cells import Cell
from benchmarks.gpu.models import check_models, model_folder, shape_for
from benchmarks.gpu.plan import Plan

TITLE = "nf4 against bf16"
_RECIPES = {"bf16": "hardware/one_gpu_24_grpo", "nf4": "hardware/one_gpu_24_nf4"}
_LORA = ("actor_rollout_ref.model.lora_rank=16", "actor_rollout_ref.model.lora_alpha=16")
_TRAINING = (
    *_LORA,
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    "data.val_max_samples=4",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
    "trainer.total_training_steps=3",
    # By default veRL checks only every two seconds whether a batch is ready.
    "++trainer.v1.sampler.sampler_kwargs.poll_interval=0.1",
)
#: Number of steps of an engine; the first is not counted, since it makes the optimizer's moments.
_STEPS = 4
HEAD = ("cell", "figures")


def _size(plan: Plan) -> str:
    return "tiny" if plan.miniature else "1.5B"


def groups(plan: Plan) -> list[list[Cell]]:
    """Return the cells; the engines come first, since they need neither Ray nor vLLM."""
    length = 64 if plan.miniature else 4096
    settings = {"size": _size(plan), "length": length, "steps": _STEPS}
    engines = [Cell("nf4", f"engine-{kind}", f"veRL's engine alone, {kind}", settings) for kind in _RECIPES]
    if plan.miniature:
        return [engines]
    whole_trainings = [
        [trainings.training_cell("nf4", f"training-{kind}", f"GRPO, {kind}", recipe, _TRAINING, _size(plan))]
        for kind, recipe in _RECIPES.items()
    ]
    return [
        *([cell] for cell in engines),
        *whole_trainings,
        [Cell("nf4", "sleep", "vLLM's sleep, bf16", {"size": _size(plan)})],
    ]


def check(plan: Plan) -> None:
    """Raise RunError if the model is missing."""
    check_models(plan, {_size(plan)})


def measure(plan: Plan, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each cell."""
    for cell in cells:
        model, (part, _, kind) = model_folder(plan, _size(plan)), cell.name.partition("-")
        if part == "engine":
            yield _engine(plan, kind, cell.settings["length"])
        elif part == "training":
            yield trainings.run_training(plan, cell, plan.out / "runs" / cell.name)
        else:
            from benchmarks.gpu.served import sleep

            prompts = [[1, 2, 3, number] for number in range(8)]
            options = ("--max-model-len", "1024", "--gpu-memory-utilization", "0.5", "--enforce-eager")
            yield sleep(model, plan.out / "logs" / "nf4" / "vllm.log", prompts, options)


def _engine(plan: Plan, kind: str, length: int) -> dict[str, Any]:
    """Return seconds and peaks of a step with two rows, and the difference of log-probs."""
    from benchmarks.gpu.engine import PARTS, LoneEngine, compose, random_rows
    from benchmarks.gpu.memory_use import PhaseMeter
    from benchmarks.gpu.sent_model import sent_log_probs

    meter, size, seconds = PhaseMeter(), _size(plan), []
    config = compose(plan, _RECIPES[kind], model_folder(plan, size), *_LORA)
    with meter.phase("load"):
        engine = LoneEngine(config)
    token_rows = random_rows(2, length, shape_for(size).vocabulary)
    for _ in range(_STEPS):
        engine.step(token_rows, length, meter.phase)
        seconds.append(meter.seconds(*PARTS))
    engine_rows = engine.log_probs(token_rows, length)
    sent_rows = sent_log_probs(engine, model_folder(plan, size), token_rows)
    gaps = [(ours - sent).abs() for ours, sent in zip(engine_rows, sent_rows, strict=True)]
    return {
        "step_s": median(seconds[1:]),
        "phases": meter.peaks,
        "gap_mean": float(sum(gap.sum() for gap in gaps) / sum(map(len, gaps))),
        "gap_max": float(max(gap.max() for gap in gaps)),
    }


def rows(cell: Cell, figures: dict[str, Any]) -> list[list[object]]:
    """Return a row with the figures in words."""
    return [[cell.label, _words(cell, figures)]]


def _words(cell: Cell, figures: dict[str, Any]) -> str:
    """Describe the figures of a cell."""
    if cell.name.startswith("engine"):
        peak = max(phase["used"] for phase in figures["phases"].values())
        gap = f"{figures['gap_mean']:.1e} (mean), {figures['gap_max']:.1e} (largest)"
        return f"{figures['step_s']:.2f} s a step, peak {peak / 1e9:.1f} GB, difference of log-probs {gap}"
    if cell.name == "sleep":
        awake, asleep = (f"{(figures[name] or 0) / 1e9:.1f}" for name in ("awake", "asleep"))
        tokens = "the same" if figures["same_tokens"] else "other"
        seconds = f"{figures['sleep_s']:.1f} s to sleep, {figures['wake_s']:.1f} s to wake"
        return f"{awake} GB awake, {asleep} GB asleep; {seconds}; {tokens} tokens afterwards"
    head = zip(trainings.HEAD[1:], trainings.training_row(cell.label, figures)[1:], strict=True)
    return "; ".join(f"{name} {value}" for name, value in head)
