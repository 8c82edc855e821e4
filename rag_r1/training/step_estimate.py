"""`rag-r1 train --estimate`: estimates how long a step takes on this CPU.

A measurement takes about a minute, with the number of threads that a training would have. It plays some of
the training questions with vLLM, the recipe's search and its temperature, and then computes log-probs and
gradients of rows with the same mean length. The times of the parts of a step, and of the whole training, are
calculated from the measured rates.

The estimate is rough: vLLM is faster per trajectory if it answers more of them at a time, rows of different
lengths are padded, and answers become longer or shorter while the policy learns. Adapters and nf4 are not
measured, and neither are the optimizer's step and the time to send weights to vLLM.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

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
from rag_r1.training.config_facts import needs_critic, needs_reference
from rag_r1.training.preflight.data import files_of, is_local_parquet

if TYPE_CHECKING:
    from omegaconf import DictConfig

#: The approximate number of trajectories that are played. Groups are played as a whole.
_TRAJECTORIES = 16
#: The approximate number of tokens in the computed rows.
_TOKENS = 2048
#: Seconds for which the rows are computed again and again.
_SECONDS = 8.0
_STEPS = "trainer.total_training_steps"


@dataclass(frozen=True)
class PlayedTrajectories:
    """Trajectories that were played to measure how long this takes."""

    count: int
    #: Seconds from the first request to the last answer.
    seconds: float
    #: Mean number of tokens of a trajectory, including the prompt.
    mean_tokens: float


@dataclass(frozen=True)
class Measurement:
    """The measured values from which the times of a step are calculated."""

    played: PlayedTrajectories
    #: Tokens per second for which log-probs are computed.
    log_prob_rate: float
    #: Tokens per second for which an update is computed.
    update_rate: float


def step_parts(config: DictConfig, measurement: Measurement) -> dict[str, float]:
    """Return the seconds that each part of a step takes, by the name of the part."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    trajectories = config.data.train_batch_size * rollout.n
    played = measurement.played
    tokens = trajectories * played.mean_tokens
    parts = {"generating": played.seconds * trajectories / played.count}
    if not (config.algorithm.get("rollout_correction") or {}).get("bypass_mode"):
        parts["log-probs"] = tokens / measurement.log_prob_rate
    if needs_reference(config):
        parts["reference"] = tokens / measurement.log_prob_rate
    parts["update"] = tokens * actor.ppo_epochs / measurement.update_rate
    if needs_critic(config):
        parts["values"] = tokens / measurement.log_prob_rate
        parts["critic"] = tokens * config.critic.ppo_epochs / measurement.update_rate
    return parts


def estimate_lines(config: DictConfig, measurement: Measurement) -> list[str]:
    """Return lines with the parts of a step and, if the number of steps is set, the length of the
    training."""
    parts = step_parts(config, measurement)
    step_s = sum(parts.values())
    rows = [[name, f"{seconds:.0f}"] for name, seconds in [*parts.items(), ("a step", step_s)]]
    trajectories = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
    lines = [*table(["of a step", "s"], rows, "lr"), ""]
    lines.append(f"{trajectories} trajectories of {measurement.played.mean_tokens:.0f} tokens")
    if (steps := config.trainer.total_training_steps) is None:
        return [*lines, f"{_STEPS} is not set, so the length of the training is not known"]
    questions = _validation_questions(config.data)
    test_freq = config.trainer.test_freq
    validations = int(bool(config.trainer.val_before_train))
    validations += math.ceil(steps / test_freq) if test_freq > 0 else 0
    answers = validations * (questions or 0) * config.actor_rollout_ref.rollout.val_kwargs.n
    seconds = steps * step_s + answers * measurement.played.seconds / measurement.played.count
    extent = f"{steps} steps, and {validations} validations of {questions} questions"
    if questions is None:
        extent = f"{steps} steps without validations, since data.val_files are not local parquet files"
    return [*lines, f"{extent}: about {_duration(seconds)}"]


def _validation_questions(data: DictConfig) -> int | None:
    """Return the number of questions in a validation, or None if not all of its files are local parquet
    files. `data` is that block of a configuration."""
    import pyarrow.parquet as pq

    files = files_of(data, "val_files")
    if not all(map(is_local_parquet, files)):
        return None
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    return min(rows, data.val_max_samples) if (data.get("val_max_samples") or -1) > 0 else rows


def _duration(seconds: float) -> str:
    """Return a time in minutes, or from an hour and a half on in hours."""
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def print_estimate(config: DictConfig) -> None:
    """Measure and print how long a step takes. Raises RunError if the training is not on a CPU, or if no
    trajectory can be played."""
    if config.trainer.get("device") != "cpu":
        remedy = "on a GPU run two steps instead, trainer.total_training_steps=2"
        raise RunError(f"--estimate measures a CPU: {remedy}")
    os.environ["OMP_NUM_THREADS"] = str(vllm_threads(config))
    print(f"playing about {_TRAJECTORIES} trajectories with vLLM", flush=True)
    with TemporaryDirectory(prefix="rag-r1-estimate-") as folder:
        played = asyncio.run(_play(config, Path(folder)))
    print(f"computing rows of {played.mean_tokens:.0f} tokens", flush=True)
    model = Path(config.actor_rollout_ref.model.path).expanduser()
    threads = trainer_threads(model, int(config.trainer.n_gpus_per_node))
    measurement = Measurement(played, *_model_rates(model, round(played.mean_tokens), threads))
    print("\n".join(["", *estimate_lines(config, measurement)]), flush=True)


async def _play(config: DictConfig, folder: Path) -> PlayedTrajectories:
    """Play training questions, and write their records into `folder`. Raises RunError if no trajectory could
    be played."""
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
    setup = prepare_evaluation(resolved)
    # The output of the evaluation is not shown: it names a folder that will be removed.
    with serve_model(resolved) as served, redirect_stdout(StringIO()):
        await run_condition(served, setup, agent_condition(setup.setup), folder)
    run = read_run(folder)
    played = ~run.failed
    if not played.any():
        failures = ", ".join(sorted({kind for kinds in run.failures for kind in kinds}))
        raise RunError(f"no trajectory could be played ({failures} failed): `rag-r1 eval groups` shows why")
    columns = {name: values[played] for name, values in run.columns.items()}
    tokens = sum(columns[f"{part}_tokens"] for part in ("prompt", "generated", "observed"))
    return PlayedTrajectories(len(tokens), float(columns["seconds"].max()), float(tokens.mean()))


def _model_rates(model: Path, row_tokens: int, threads: int) -> tuple[float, float]:
    """Return the rates of log-probs and of an update in tokens per second, measured in 32 bits on rows of
    `row_tokens` tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    policy = AutoModelForCausalLM.from_pretrained(
        str(model), dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
    )
    rows = torch.randint(policy.config.vocab_size, (max(1, _TOKENS // row_tokens), row_tokens))

    def log_probs() -> torch.Tensor:
        logits = policy(input_ids=rows).logits
        return torch.log_softmax(logits, -1).gather(-1, rows.unsqueeze(-1)).mean()

    def update() -> None:
        log_probs().backward()
        policy.zero_grad()

    with torch.no_grad():
        log_prob_rate = _repeats_per_second(log_probs) * rows.numel()
    return log_prob_rate, _repeats_per_second(update) * rows.numel()


def _repeats_per_second(compute: Callable[[], object]) -> float:
    """Return how often per second a function can be called, measured for `_SECONDS`."""
    compute()  # the first call is slower, since it allocates memory
    start = time.monotonic()
    for repeats in itertools.count(1):
        compute()
        if (seconds := time.monotonic() - start) >= _SECONDS:
            return repeats / seconds
