"""Tests whether the machine works at all: its environment, a generation by vLLM, and a small step by veRL.

It is the first phase, so that a machine that lacks something is found out within minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu.cells import Cell
from benchmarks.gpu.models import PROTOCOL
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.trainings import SMALL, run_training, step_median, training_cell

TITLE = "Smoke"
_ENVIRONMENT = Cell("smoke", "environment", "the doctor, and what PyTorch says of the GPU")
_GENERATION = Cell("smoke", "generation", "vLLM, the demo's policy, 8 prompts", {"prompts": 8})
_STEP = training_cell(
    "smoke", "verl_step", "one step of recipes/demo/grpo", "demo/grpo",
    [*SMALL, "trainer.total_training_steps=1"],
)  # fmt: skip
#: vLLM options with which all prompts fit into one batch.
_OPTIONS = ("--max-model-len", "512", "--max-num-seqs", "8", "--max-num-batched-tokens", "4096")
HEAD = ("cell", "figures")


def groups(plan: Plan) -> list[list[Cell]]:
    """Return the cells; the environment comes first, since its versions help most if nothing else runs."""
    return [[_ENVIRONMENT], [_GENERATION], [_STEP]]


def check(plan: Plan) -> None:
    """Do nothing, since the phase needs no further input."""


def measure(plan: Plan, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each cell."""
    functions = {_ENVIRONMENT: _environment, _GENERATION: _generation, _STEP: _step}
    for cell in cells:
        yield functions[cell](plan)


def _environment(plan: Plan) -> dict[str, Any]:
    """Return the findings of `rag-r1 doctor`, the versions of torch and CUDA, and the GPU."""
    import torch

    from rag_r1.training.doctor.command import find_all

    findings = [[finding.name, finding.state, finding.detail] for finding in find_all(None)]
    figures: dict[str, Any] = {"doctor": findings, "torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        figures |= {"gpu": gpu.name, "gpu_bytes": gpu.total_memory, "capability": [gpu.major, gpu.minor]}
    return figures


def _generation(plan: Plan) -> dict[str, Any]:
    """Start vLLM with the demo's policy, and return the figures of a generation."""
    from transformers import AutoTokenizer

    from benchmarks.gpu.served import generation
    from rag_r1.demo.policy import policy_path

    policy = policy_path(PROTOCOL)
    texts = [f"Who trained with person {number} of the town?" for number in range(8)]
    prompts = [AutoTokenizer.from_pretrained(policy).encode(text) for text in texts]
    options = (*_OPTIONS, *(() if plan.miniature else ("--gpu-memory-utilization", "0.3", "--enforce-eager")))
    return generation(policy, plan.out / "logs" / "smoke" / "vllm.log", prompts, options)


def _step(plan: Plan) -> dict[str, Any]:
    return run_training(plan, _STEP, plan.out / "runs" / "smoke")


def rows(cell: Cell, figures: dict[str, Any]) -> list[list[object]]:
    """Return a row with the figures in words."""
    return [[cell.label, _words(cell, figures)]]


def _words(cell: Cell, figures: dict[str, Any]) -> str:
    """Describe the figures of a cell."""
    if cell == _ENVIRONMENT:
        states = [state for _, state, _ in figures["doctor"]]
        bad = f"{states.count('warning')} warnings, {states.count('MISSING')} missing"
        return f"torch {figures['torch']}, CUDA {figures['cuda']}; {len(states)} checks, {bad}"
    if cell == _GENERATION:
        return f"ready after {figures['ready_s']:.0f} s; {figures['tokens_per_s']:.0f} tokens/s"
    gap = step_median(figures, "search/logprob_gap_max")
    seconds = step_median(figures, "timing_s/step") or float("nan")
    return f"{seconds:.1f} s a step; largest difference of log-prob, vLLM and actor: {gap} nats"
