"""`rag-r1 train --estimate`: how long would a step take on this CPU?

A probe of about a minute, with the threads that a training would have: it plays some of the training
questions with vLLM, the recipe's search and its temperature, and then computes log-probs, and gradients, of
some rows of that length. From its rates follow the parts of a step, and the length of the whole training.

What it leaves out makes a step longer or shorter: vLLM answers more trajectories at a time faster than in
proportion, rows of different lengths are padded, and answers grow or shrink while the policy learns. Adapters
and nf4 are not probed; the weights to vLLM are no part.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rag_r1.evaluation.baselines import agent_condition
from rag_r1.evaluation.condition_run import run_condition
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.evaluation_inputs import prepare_evaluation
from rag_r1.evaluation.report.run_table import read_run
from rag_r1.evaluation.run_defaults import validation_arguments
from rag_r1.evaluation.target import resolve_model, serve_model
from rag_r1.runs.errors import RunError
from rag_r1.runs.markdown import table
from rag_r1.system.cores import trainer_threads
from rag_r1.training.added_overrides import vllm_threads
from rag_r1.training.preflight.data import files_of
from rag_r1.training.preflight.sessions import needs_critic

#: Trajectories that are played, about; whole groups.
_TRAJECTORIES = 16
#: Tokens of the rows that are computed, about, and seconds for which it is repeated.
_TOKENS, _SECONDS = 2048, 8.0
_STEPS = "trainer.total_training_steps"


@dataclass(frozen=True)
class Probe:
    """What was measured: `trajectories` played in `rollout_s`, of `tokens` each with the prompt; tokens/s of
    log-probs and of an update."""

    trajectories: int
    rollout_s: float
    tokens: float
    log_probs: float
    update: float


def step_parts(config: Any, probe: Probe) -> dict[str, float]:
    """Seconds of the parts of a step of a composed configuration."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    trajectories = config.data.train_batch_size * rollout.n
    tokens = trajectories * probe.tokens
    parts = {"generating": probe.rollout_s * trajectories / probe.trajectories}
    if not (config.algorithm.get("rollout_correction") or {}).get("bypass_mode"):
        parts["log-probs"] = tokens / probe.log_probs
    if actor.use_kl_loss or config.algorithm.use_kl_in_reward:
        parts["reference"] = tokens / probe.log_probs
    parts["update"] = tokens * actor.ppo_epochs / probe.update
    if needs_critic(config):
        parts["values"] = tokens / probe.log_probs
        parts["critic"] = tokens * config.critic.ppo_epochs / probe.update
    return parts


def estimate_lines(config: Any, probe: Probe) -> list[str]:
    """The parts of a step, and how long the training takes if the number of its steps is set."""
    parts = step_parts(config, probe)
    step = sum(parts.values())
    rows = [[name, f"{seconds:.0f}"] for name, seconds in [*parts.items(), ("a step", step)]]
    trajectories = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    lines = [*table(["of a step", "s"], rows, "lr"), ""]
    lines.append(f"{trajectories} trajectories of {probe.tokens:.0f} tokens")
    if (steps := config.trainer.total_training_steps) is None:
        return [*lines, f"{_STEPS} is not set, so the length of the training is not known"]
    freq, questions = config.trainer.test_freq, _validation_questions(config.data)
    validations = int(bool(config.trainer.val_before_train)) + (-(-steps // freq) if freq > 0 else 0)
    seconds = steps * step + validations * questions * probe.rollout_s / probe.trajectories
    return [
        *lines,
        f"{steps} steps, and {validations} validations of {questions} questions: about {_duration(seconds)}",
    ]


def _validation_questions(data: Any) -> int:
    import pyarrow.parquet as pq

    rows = sum(pq.read_metadata(file).num_rows for file in files_of(data, "val_files"))
    return min(rows, data.val_max_samples) if (data.get("val_max_samples") or -1) > 0 else rows


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def print_estimate(config: Any) -> None:
    """Measure and print. Raises RunError if the training is not on a CPU, or cannot be played."""
    if config.trainer.get("device") != "cpu":
        raise RunError(
            "--estimate measures a CPU: on a GPU run two steps instead, trainer.total_training_steps=2"
        )
    os.environ["OMP_NUM_THREADS"] = str(vllm_threads(config))
    print(f"playing about {_TRAJECTORIES} trajectories with vLLM", flush=True)
    with TemporaryDirectory(prefix="rag-r1-estimate-") as folder:
        trajectories, rollout_s, tokens = asyncio.run(_play(config, Path(folder)))
    print(f"computing rows of {tokens:.0f} tokens", flush=True)
    model = str(Path(config.actor_rollout_ref.model.path).expanduser())
    threads = trainer_threads(Path(model), int(config.trainer.n_gpus_per_node))
    log_probs, update = _model_rates(model, round(tokens), threads)
    probe = Probe(trajectories, rollout_s, tokens, log_probs, update)
    print("\n".join(["", *estimate_lines(config, probe)]), flush=True)


async def _play(config: Any, folder: Path) -> tuple[int, float, float]:
    """Trajectories that were played, seconds from the first request to the last answer, and mean tokens."""
    rollout = config.actor_rollout_ref.rollout
    groups = max(1, min(config.data.train_batch_size, _TRAJECTORIES // rollout.n))
    args = EvalArguments(
        **validation_arguments(config)
        | {
            "model": str(config.actor_rollout_ref.model.path),
            "questions": files_of(config.data, "train_files"),
            "limit": groups,
            "samples": rollout.n,
            "temperature": rollout.temperature,
            "out": folder,
        }
    )
    resolved = resolve_model(args)
    ready = prepare_evaluation(resolved)
    # The figures of an evaluation, and its folder that is removed, are not what was asked for.
    with serve_model(resolved) as served, redirect_stdout(StringIO()):
        await run_condition(served, ready, agent_condition(ready.setup), folder)
    run = read_run(folder)
    played = ~run.failed
    if not played.any():
        failures = ", ".join(sorted({kind for kinds in run.failures for kind in kinds}))
        raise RunError(f"no trajectory could be played ({failures} failed): `rag-r1 eval groups` shows why")
    columns = {name: values[played] for name, values in run.columns.items()}
    tokens = sum(columns[f"{part}_tokens"] for part in ("prompt", "generated", "observed"))
    return len(tokens), float(columns["seconds"].max()), float(tokens.mean())


def _model_rates(model: str, length: int, threads: int) -> tuple[float, float]:
    """Tokens/s of log-probs and of an update, in 32 bits, on rows of `length` tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    policy = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
    )
    rows = torch.randint(policy.config.vocab_size, (max(1, _TOKENS // length), length))

    def log_probs() -> torch.Tensor:
        logits = policy(input_ids=rows).logits
        return torch.log_softmax(logits, -1).gather(-1, rows.unsqueeze(-1)).mean()

    def update() -> None:
        log_probs().backward()
        policy.zero_grad()

    with torch.no_grad():
        forward = _repeats_per_second(log_probs)
    return forward * rows.numel(), _repeats_per_second(update) * rows.numel()


def _repeats_per_second(compute: Callable[[], object]) -> float:
    compute()  # the first time allocates
    start, repeats, seconds = time.monotonic(), 0, 0.0
    while seconds < _SECONDS:
        compute()
        repeats, seconds = repeats + 1, time.monotonic() - start
    return repeats / seconds
