"""Measures the memory of a training step in veRL's FSDP engine alone, beside the preflight's estimate.

One process loads a model, makes a first step, after which the optimizer has its moments, and then a step with
two micro batches for each of their sizes. The peaks are measured by phase: forward and backward, the
optimizer's step, the weights made for vLLM, and the memory that remains on the GPU while others compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from benchmarks.gpu.cells import Cell
from benchmarks.gpu.estimate import PHASES, estimate_of
from benchmarks.gpu.models import check_models, model_folder, shape_for
from benchmarks.gpu.plan import Plan

TITLE = "Memory of a step, veRL's engine alone"
_RECIPES = {"lora": "hardware/one_gpu_80_grpo", "full": "rag_r1/grpo"}
#: Sizes of models, and of micro batches in tokens.
_SIZES, _TOKENS = ("1.5B", "3B", "7B"), (4096, 10_240, 20_480)
#: The same for the miniature.
_TINY_SIZES, _TINY_TOKENS = ("tiny",), (64, 256)
#: (what is trained, whether it is offloaded) in the miniature.
_TINY_KINDS = (("lora", True), ("full", False))
#: Bytes of a parameter in 32 bits, with its gradient and Adam's two moments.
_STATE = 16
_ACTOR = "actor_rollout_ref.actor"
HEAD = ("model", "trained", "offload", "tokens", *(f"{phase}, GB" for phase in PHASES), "a step, s")


def groups(plan: Plan) -> list[list[Cell]]:
    """Return a group for each model, for adapters and for full training, with and without offloading.

    Full training is left out if weights, gradients and moments alone exceed the memory of the GPU.
    """
    models, tokens = (_TINY_SIZES, _TINY_TOKENS) if plan.miniature else (_SIZES, _TOKENS)
    kinds = _TINY_KINDS if plan.miniature else tuple(product(_RECIPES, (True, False)))
    return [
        [_cell(size, trained, offload, count) for count in tokens]
        for (trained, offload), size in product(kinds, models)
        if trained == "lora" or _STATE * shape_for(size).parameters < plan.gpu_bytes
    ]


def check(plan: Plan) -> None:
    """Raise RunError if a model is missing."""
    check_models(plan, {cell.settings["size"] for group in groups(plan) for cell in group})


def _cell(size: str, trained: str, offload: bool, tokens: int) -> Cell:
    name = f"{size}-{trained}-{'offload' if offload else 'kept'}-{tokens}"
    settings = {"size": size, "trained": trained, "offload": offload, "tokens": tokens}
    state = "offloaded" if offload else "kept"
    return Cell("memory", name, f"{size}, {trained}, {state}, {tokens:,} tokens", settings)


def overrides(settings: dict[str, Any]) -> list[str]:
    """Return the overrides of the recipe for a cell."""
    offload = str(settings["offload"]).lower()
    keys = ("param_offload", "optimizer_offload")
    return [
        f"{_ACTOR}.ppo_max_token_len_per_gpu={settings['tokens']}",
        f"{_ACTOR}.use_dynamic_bsz=true",
        *(f"{_ACTOR}.fsdp_config.{key}={offload}" for key in keys),
    ]


def measure(plan: Plan, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Yield each cell's peaks by phase and their estimates, in bytes, and seconds and tokens of a step."""
    from benchmarks.gpu.engine import PARTS, LoneEngine, compose, random_rows
    from benchmarks.gpu.memory_use import PhaseMeter

    meter, first = PhaseMeter(), cells[0].settings
    shape, folder = shape_for(first["size"]), model_folder(plan, first["size"])
    recipe, trains_adapters = _RECIPES[first["trained"]], first["trained"] == "lora"
    config = compose(plan, recipe, folder, *overrides(first))
    longest = int(config.data.max_prompt_length + config.data.max_response_length)
    with meter.phase("load"):
        engine = LoneEngine(config)
    engine.step(random_rows(2, 64, shape.vocabulary), 64)
    for cell in cells:
        tokens = cell.settings["tokens"]
        config = compose(plan, recipe, folder, *overrides(cell.settings))
        length = min(tokens, longest)
        token_rows = random_rows(2 * tokens // length, length, shape.vocabulary)
        engine.step(token_rows, tokens, meter.phase)
        with meter.phase("gather"):
            engine.gather(trains_adapters=trains_adapters)
        with meter.phase("waiting"):
            pass
        estimate = estimate_of(config, shape, plan.gpu_bytes)
        peaks = meter.peaks
        phases = {name: peaks[name] | _compare(estimate[name], peaks[name]["used"]) for name in PHASES}
        yield {"phases": phases, "step_s": meter.seconds(*PARTS), "step_tokens": sum(map(len, token_rows))}


def _compare(estimate: float, used: float) -> dict[str, float | None]:
    """Return an estimate with its deviation from the measured bytes, in per cent."""
    return {"estimate": estimate, "error_percent": 100 * (estimate / used - 1) if used > 0 else None}


def rows(cell: Cell, figures: dict[str, Any]) -> list[list[object]]:
    """Return one row, with the used memory of each phase and the deviation of its estimate."""
    settings = cell.settings
    labels = [settings["size"], settings["trained"], "yes" if settings["offload"] else "no"]
    peaks = [_peak_cell(figures["phases"][phase]) for phase in PHASES]
    return [[*labels, f"{settings['tokens']:,}", *peaks, f"{figures['step_s']:.2f}"]]


def _peak_cell(peak: dict[str, Any]) -> str:
    error = peak["error_percent"]
    return f"{peak['used'] / 1e9:.2f}" + ("" if error is None else f" ({error:+.0f} %)")
