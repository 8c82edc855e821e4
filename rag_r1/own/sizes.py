"""Chooses the recipes of a plan that names none: by the size of the model, and by the platform.

    tiny     weights below 64 MB, such as the demo's policy       demo/grpo, rag_r1/sft/demo
    small    below 2 GB, such as SmolLM2-135M                     real_small/grpo, real_small/sft
    large    everything else                                      rag_r1/grpo, rag_r1/sft/qwen_7b

The recipes of the small sizes are for CPUs; on a GPU they get the platform and the changes that the README of
recipes/real_small gives. A recipe or platform that the plan names is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rag_r1.config.recipes import RECIPES
from rag_r1.inference.model_folders import is_hub_name
from rag_r1.own.plan import OwnPlan
from rag_r1.system.gpu_driver import driver_version

_MEGABYTE = 1 << 20
#: Changes of the recipes of the small sizes on a GPU.
_SFT_ON_A_GPU = """
    trainer.device=cuda engine.mixed_precision.param_dtype=bf16 data.max_token_len_per_gpu=16384
    trainer.save_freq=after_each_epoch trainer.test_freq=after_each_epoch
""".split()
_GRPO_ON_A_GPU = """
    trainer.n_gpus_per_node=1 algorithm.rollout_correction.bypass_mode=false
    actor_rollout_ref.rollout.enforce_eager=true actor_rollout_ref.rollout.free_cache_engine=false
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 actor_rollout_ref.rollout.agent.num_workers=1
""".split()


@dataclass(frozen=True)
class ModelSize:
    """The recipes for models of a size. `below`: more bytes than their weights have; `prompts`: files of the
    policy's prompt and of that for one search, in the folder of the recipes; `is_for_cpus`: the recipes' own
    platform is the CPU; `times`: seconds on two cores of a sample of SFT, of a question that is filtered or
    evaluated, and of a step of GRPO (docs/guides/pipeline.md), None where that was not measured."""

    name: str
    below: float
    sft: str
    grpo: str
    prompts: tuple[str, str] | None = None
    is_for_cpus: bool = True
    times: tuple[float, float, float] | None = None


_SMALL_PROMPTS = ("real_small/prompt.txt", "real_small/one_shot.txt")
#: From the smallest.
SIZES = (
    ModelSize("tiny", 64 * _MEGABYTE, "rag_r1/sft/demo", "demo/grpo", times=(0.07, 0.45, 40.0)),
    ModelSize("small", 2048 * _MEGABYTE, "real_small/sft", "real_small/grpo", _SMALL_PROMPTS),
    ModelSize("large", float("inf"), "rag_r1/sft/qwen_7b", "rag_r1/grpo", is_for_cpus=False),
)


def size_of(model: str) -> ModelSize:
    """The size of a model by the bytes of its weights; the largest for one that is not on this machine
    yet."""
    folder = Path(model)
    files = [] if is_hub_name(model) else [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    weight_bytes = sum(file.stat().st_size for file in files)
    return next(size for size in SIZES if weight_bytes < size.below) if files else SIZES[-1]


def this_platform() -> str:
    """The platform of this machine: `gpu` if it has a driver of NVIDIA, else `cpu`."""
    return "gpu" if driver_version() is not None else "cpu"


def with_recipes(plan: OwnPlan) -> OwnPlan:
    """The plan, which must have a model, with a platform and with all recipes."""
    assert plan.policy.model is not None
    size = size_of(plan.policy.model)
    platform: Any = plan.policy.platform or this_platform()
    if size.is_for_cpus and platform == "gpu":
        platform = "gpu_sdpa"
    policy = replace(plan.policy, platform=platform)
    on_a_gpu = size.is_for_cpus and platform != "cpu"
    sft, grpo, evaluation = plan.sft, plan.grpo, plan.evaluation
    if sft.recipe is None:
        extra = _SFT_ON_A_GPU if on_a_gpu else ()
        sft = replace(sft, recipe=size.sft, overrides=(*extra, *sft.overrides))
    if grpo.recipe is None:
        default_platform = "cpu" if size.is_for_cpus else "gpu"
        changes = [
            *([] if platform == default_platform else [f"platform={platform}"]),
            *(_GRPO_ON_A_GPU if on_a_gpu else ()),
        ]
        grpo = replace(grpo, recipe=size.grpo, overrides=(*changes, *grpo.overrides))
        if size.prompts is not None and policy.prompt is None:
            prompt, one_shot = (str(RECIPES / name) for name in size.prompts)
            policy = replace(policy, prompt=prompt)
            if evaluation.one_shot_prompt is None:
                evaluation = replace(evaluation, one_shot_prompt=one_shot)
    return replace(plan, policy=policy, sft=sft, grpo=grpo, evaluation=evaluation)
