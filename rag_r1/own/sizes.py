"""Chooses the recipes of a plan that names none, by the size of the model and by the platform.

    size     weights                                       recipes
    tiny     below 64 MB, such as the demo's policy        demo/grpo, rag_r1/sft/demo
    small    below 2 GB, such as SmolLM2-135M              real_small/grpo, real_small/sft
    large    everything else                               rag_r1/grpo, rag_r1/sft/qwen_7b

The recipes for tiny and small models are made for CPUs. On a GPU they get the platform `gpu_sdpa`, also if
the plan names `gpu`, and the overrides that the README of recipes/real_small recommends. A recipe that the
plan names is kept as it is: the platform of the plan does not change it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rag_r1.config.recipes import RECIPES
from rag_r1.inference.model_folders import is_hub_name
from rag_r1.own.plan import OwnPlan, Platform
from rag_r1.system.gpu_driver import driver_version

_MEGABYTE = 1 << 20
#: Overrides with which the recipes for CPUs run on a GPU.
_SFT_ON_A_GPU = """
    trainer.device=cuda engine.mixed_precision.param_dtype=bf16 data.max_token_len_per_gpu=16384
    trainer.save_freq=after_each_epoch trainer.test_freq=after_each_epoch
    model.use_remove_padding=false model.override_config.attn_implementation=sdpa
""".split()
_GRPO_ON_A_GPU = """
    trainer.n_gpus_per_node=1 algorithm.rollout_correction.bypass_mode=false
    actor_rollout_ref.rollout.enforce_eager=true actor_rollout_ref.rollout.free_cache_engine=false
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 actor_rollout_ref.rollout.agent.num_workers=1
""".split()


class RecipePrompts(NamedTuple):
    """Files with prompts, in the folder of the recipes."""

    agent: str
    #: For the baseline of one search (RAG).
    one_shot: str


class MeasuredTimes(NamedTuple):
    """Times on two CPU cores in seconds, as measured for docs/guides/pipeline.md."""

    #: For an SFT sample.
    sample_s: float
    #: For a question in the filter, with its replays.
    question_s: float
    #: For a step of GRPO.
    step_s: float


@dataclass(frozen=True)
class ModelSize:
    """A range of model sizes, and the recipes for it."""

    name: str
    #: Models with weights of fewer bytes have this size, unless a smaller one applies.
    below_bytes: float
    #: Names of the recipes.
    sft: str
    grpo: str
    #: None for the prompts of the protocol.
    prompts: RecipePrompts | None = None
    #: Whether the recipes are made for a CPU.
    is_for_cpus: bool = True
    #: None if nothing was measured.
    times: MeasuredTimes | None = None


_SMALL_PROMPTS = RecipePrompts("real_small/prompt.txt", "real_small/one_shot.txt")
#: All sizes, the smallest first.
SIZES = (
    ModelSize("tiny", 64 * _MEGABYTE, "rag_r1/sft/demo", "demo/grpo", times=MeasuredTimes(0.07, 0.45, 40.0)),
    ModelSize("small", 2048 * _MEGABYTE, "real_small/sft", "real_small/grpo", _SMALL_PROMPTS),
    ModelSize("large", float("inf"), "rag_r1/sft/qwen_7b", "rag_r1/grpo", is_for_cpus=False),
)


def size_of(model: str) -> ModelSize:
    """Return the size of a model by its weights, of which a folder may have a copy in each of two formats. A
    model without weights on this machine counts as large."""
    folder = Path(model)
    files = [] if is_hub_name(model) else [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]
    weight_bytes = sum(file.stat().st_size for file in files)
    return next(size for size in SIZES if weight_bytes < size.below_bytes) if files else SIZES[-1]


def this_platform() -> Platform:
    """Return the platform of this machine: `gpu` if it has an NVIDIA driver, else `cpu`."""
    return "gpu" if driver_version() is not None else "cpu"


def with_recipes(plan: OwnPlan) -> OwnPlan:
    """Return the plan with a platform and with all recipes; `plan` must name a model.

    With the recipe of a small model, the plan also gets its prompts, unless it has some of its own. Overrides
    that the plan has come after those that are added here, and therefore take precedence.
    """
    assert plan.policy.model is not None
    size = size_of(plan.policy.model)
    platform: Platform = plan.policy.platform or this_platform()
    if size.is_for_cpus and platform == "gpu":
        platform = "gpu_sdpa"
    policy = replace(plan.policy, platform=platform)
    is_moved_to_gpu = size.is_for_cpus and platform != "cpu"
    sft, grpo, evaluation = plan.sft, plan.grpo, plan.evaluation
    if sft.recipe is None:
        added = _SFT_ON_A_GPU if is_moved_to_gpu else ()
        sft = replace(sft, recipe=size.sft, overrides=(*added, *sft.overrides))
    if grpo.recipe is None:
        default_platform = "cpu" if size.is_for_cpus else "gpu"
        added = [] if platform == default_platform else [f"platform={platform}"]
        added += _GRPO_ON_A_GPU if is_moved_to_gpu else []
        grpo = replace(grpo, recipe=size.grpo, overrides=(*added, *grpo.overrides))
        if size.prompts is not None and policy.prompt is None:
            policy = replace(policy, prompt=str(RECIPES / size.prompts.agent))
            if evaluation.one_shot_prompt is None:
                evaluation = replace(evaluation, one_shot_prompt=str(RECIPES / size.prompts.one_shot))
    return replace(plan, policy=policy, sft=sft, grpo=grpo, evaluation=evaluation)
