"""The steps of `rag-r1 own` that train: SFT, the filter by difficulty, and GRPO.

    sft       fine-tunes the model on the samples                            `rag-r1 sft`
    filter    lets the fine-tuned model play the training questions, and
              drops those that are too easy or too hard for it               `rag-r1 filter`
    grpo      trains the fine-tuned model on the remaining questions by
              reinforcement learning                                         `rag-r1 stages`

If the plan skips `sft`, the untrained model takes the place of the fine-tuned one.

Both trainings run as child processes, which resume from their last checkpoint. SFT is a command like any
other, whose log of metrics moves a progress bar here. GRPO is started by `train`, which shows veRL's metrics,
keeps it out of an existing Ray cluster and lets it inherit the folder's lock. The filter calls the function
of its command, and starts a vLLM server for the model.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rag_r1.config.recipes import Recipe
from rag_r1.inference.vllm_server import vllm_server
from rag_r1.io.bounded_json import read_json_object
from rag_r1.io.file_hash import sha256_of_file
from rag_r1.options.arguments.overrides import hydra_quoted
from rag_r1.options.settings_file import recorded_settings
from rag_r1.own.artifacts import OwnArtifacts, own_step
from rag_r1.own.episodes import without_prompt
from rag_r1.runs.errors import RunError
from rag_r1.runs.processes import run_module
from rag_r1.runs.steps import Step
from rag_r1.sft.filter_command import FilterArguments, filter_questions
from rag_r1.sft.progress import SftProgressBar
from rag_r1.sft.train_command import METRICS, SftArguments, validation_losses
from rag_r1.training.progress import train
from rag_r1.training.stages import StagesArguments


def training_steps(artifacts: OwnArtifacts) -> list[Step]:
    """Return the steps of the plan that train, in order."""
    plan = artifacts.plan
    steps = [] if plan.sft.skip else [_sft(artifacts)]
    if plan.grpo.skip:
        return steps
    return [*steps, *([] if plan.filter.skip else [_filter(artifacts)]), _grpo(artifacts)]


def sft_overrides(artifacts: OwnArtifacts) -> list[str]:
    """Return the overrides of the SFT recipe. The user's own come last, and therefore take precedence."""
    run = artifacts.sft_model.parent
    return [
        f"model.path={hydra_quoted(artifacts.untrained_model)}",
        f"trainer.default_local_dir={hydra_quoted(run)}",
        f"data.max_length={artifacts.episodes.context_tokens}",
        *artifacts.plan.sft.overrides,
    ]


def _sft(artifacts: OwnArtifacts) -> Step:
    """Make the step that fine-tunes the model on the samples."""
    plan = artifacts.plan.sft
    assert plan.recipe is not None  # sizes.py has chosen one
    recipe = plan.recipe
    settings = {
        "model": artifacts.model_hash,
        "recipe": _content_hash(recipe),
        "overrides": list(plan.overrides),
        "context": artifacts.episodes.context_tokens,
    }

    def work(folder: Path) -> dict[str, Any]:
        data, log = artifacts.out / "sft_data", folder / "train.log"
        overrides = sft_overrides(artifacts)
        args = SftArguments(recipe=recipe, data=data, overrides=overrides)
        print(f"  log: {log}", flush=True)
        with SftProgressBar(folder / "run" / METRICS, _sft_steps(recipe, overrides, data)) as bar:
            run_module("rag_r1.sft.train_command", *args.to_argv(), log=log, watch=bar.read)
        # From all logs: an earlier invocation may have made the last validation, and been killed then.
        losses = validation_losses(folder / "run")
        return {"samples": _rows(data / "train.parquet"), "loss": losses[max(losses)] if losses else None}

    return own_step("sft", settings, work, ("run/model",), ("sft_data",))


def _sft_steps(recipe: str, overrides: list[str], data: Path) -> int:
    """Return the number of steps of a fine-tuning, for its progress bar. veRL drops an incomplete batch."""
    from rag_r1.training.composition import compose_recipe

    config = compose_recipe(Recipe.find(recipe), overrides)
    batches = _rows(data / "train.parquet") // config.data.train_batch_size
    return config.trainer.get("total_training_steps") or batches * config.trainer.total_epochs


def _filter(artifacts: OwnArtifacts) -> Step:
    """Make the step that chooses training questions by their difficulty."""
    plan, episodes = artifacts.plan.filter, artifacts.episodes
    settings = {
        "questions": plan.questions,
        "replays": plan.replays,
        "share": plan.share,
        "playing": without_prompt(episodes.policy_arguments),
        "seed": artifacts.plan.run.seed,
        **({"model": artifacts.model_hash} if artifacts.plan.sft.skip else {}),
    }

    def work(folder: Path) -> dict[str, Any]:
        print(f"  starting vLLM (half a minute); log: {folder / 'vllm.log'}", flush=True)
        options = ("--max-model-len", str(episodes.context_tokens), *episodes.vllm_options)
        server = vllm_server(artifacts.grpo_start_model, folder / "vllm.log", options=options)
        with artifacts.retriever(folder) as retriever, server as url:
            args = filter_arguments(artifacts, folder, retriever, url)
            with recorded_settings("rag-r1 filter", args):
                if asyncio.run(filter_questions(args)):
                    raise RunError("the filter is not complete (see above): the same command goes on")
        summary = read_json_object(folder / "summary.json")
        names = ("questions", "right_at_first", "right_later", "never_right", "kept", "rollouts")
        return {name: summary[name] for name in names}

    needs = ("index", "questions", *(() if artifacts.plan.sft.skip else ("sft",)))
    return own_step("filter", settings, work, ("train.parquet",), needs)


def filter_arguments(artifacts: OwnArtifacts, folder: Path, retriever: str, url: str) -> FilterArguments:
    """Return the arguments of `rag-r1 filter`.

    `retriever` is the address of the retrieval server, and `url` that of the server with the model, which
    serves it under the name `policy`.
    """
    plan, episodes = artifacts.plan, artifacts.episodes
    return FilterArguments(
        questions=[artifacts.questions("train")],
        out=folder,
        retriever_url=retriever,
        base_url=url,
        model="policy",
        tokenizer=str(artifacts.grpo_start_model),
        limit=plan.filter.questions,
        replays=plan.filter.replays,
        share=plan.filter.share,
        validation=0,
        seed=plan.run.seed,
        **episodes.concurrency_arguments,
        **episodes.policy_arguments,
    )


def grpo_overrides(artifacts: OwnArtifacts, url: str) -> list[str]:
    """Return the overrides of the GRPO recipe, with the retrieval server at `url`."""
    plan = artifacts.plan
    filtered_file, test_file = artifacts.out / "filter" / "train.parquet", artifacts.questions("test")
    train_file = artifacts.questions("train") if plan.filter.skip else filtered_file
    return [
        f"actor_rollout_ref.model.path={hydra_quoted(artifacts.grpo_start_model)}",
        f"data.train_files={hydra_quoted(train_file)}",
        f"data.val_files={hydra_quoted(test_file)}",
        f"rag_r1.retriever.url={url}",
        f"data.val_batch_size={_validation_rows(artifacts)}",
        *artifacts.episodes.training_overrides,
        *batch_that_fits(_rows(train_file), artifacts.episodes.config),
    ]


def batch_that_fits(rows: int, config: Any) -> list[str]:
    """Return overrides that reduce the batch of a GRPO step if there are only `rows` training questions, and
    print the reduced size.

    The batch becomes the largest number of whole mini batches that the questions fill. If they do not fill
    one, it becomes a single mini batch that can be divided by the number of GPUs. Raises RunError if there
    are fewer questions than GPUs.
    """
    batch, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if rows >= batch:
        return []
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    size = rows // mini * mini or rows // gpus * gpus
    if not size:
        raise RunError(
            f"grpo: {rows} questions are too few to train on with {gpus} GPUs: raise questions.per_kind or "
            "filter.share, or give filter.skip=true"
        )
    print(f"  a step trains on {size} questions, since there are {rows} (the recipe: {batch})", flush=True)
    return [f"data.train_batch_size={size}", f"actor_rollout_ref.actor.ppo_mini_batch_size={min(mini, size)}"]


def _grpo(artifacts: OwnArtifacts) -> Step:
    """Make the step of the reinforcement learning."""
    plan = artifacts.plan.grpo
    assert plan.recipe is not None  # sizes.py has chosen one
    recipe = plan.recipe
    settings = {
        "recipe": _content_hash(recipe),
        "overrides": artifacts.episodes.recipe_overrides,
        "prompt": artifacts.plan.protocol.user_prompt,
        "seed": artifacts.plan.run.seed,
        **({"model": artifacts.model_hash} if artifacts.plan.sft.skip else {}),
    }

    def work(folder: Path) -> dict[str, Any]:
        print(f"  training with veRL, Ray, FSDP and vLLM; log: {folder / 'train.log'}", flush=True)
        with artifacts.retriever(folder) as url:
            stages = StagesArguments(recipe=[recipe], out=folder, overrides=grpo_overrides(artifacts, url))
            train([sys.executable, "-m", "rag_r1.training.stages", *stages.to_argv()], folder)
        return {"model": artifacts.grpo_model.relative_to(folder).as_posix()}

    filter_steps = () if artifacts.plan.filter.skip else ("filter",)
    sft_steps = () if artifacts.plan.sft.skip else ("sft",)
    needs = ("index", "questions", *sft_steps, *filter_steps)
    return own_step("grpo", settings, work, ("stage1/finished", "stage1/trajectories"), needs)


def _validation_rows(artifacts: OwnArtifacts) -> int:
    """Return the number of questions in a validation, all of which are in one batch."""
    rows = _rows(artifacts.questions("test"))
    limit = artifacts.episodes.config.data.get("val_max_samples") or -1
    return min(rows, limit) if limit > 0 else rows


def _rows(path: Path) -> int:
    """Return the number of rows in a parquet file."""
    return pq.ParquetFile(path).metadata.num_rows


def _content_hash(recipe: str) -> str:
    """Return a hash of the contents of a recipe's file."""
    return sha256_of_file(Recipe.find(recipe).path)[:16]
