"""`rag-r1 recipes table`: the table of shipped recipes, with dtype, learning rates and memory.

The tables in the recipes' READMEs are printed by this command, one for each folder, and a test composes the
recipes again and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rag_r1.config.recipes import shipped_names
from rag_r1.runs.markdown import table
from rag_r1.training.preflight.adapters import adapter_rank, is_nf4
from rag_r1.training.preflight.cluster import gpu_count
from rag_r1.training.preflight.memory.estimate import MemoryEstimate, memory_of, sft_memory_of
from rag_r1.training.preflight.memory.shape import SHAPES
from rag_r1.training.preflight.sessions import needs_critic

_COLUMNS = (
    "recipe", "model", "`model_dtype`", "LoRA", "learning rate", "GPUs", "update, GB", "generation, GB",
    "rows in its cache", "host, GB",
)  # fmt: skip
#: The sizes of the models that recipes are for, by the beginning of their name; 7B for the others.
_SIZES = {
    "agentic_r/agent_demo": "demo",
    "agentic_rag/": "3B",
    "demo/": "demo",
    "hardware/one_gpu_24_nf4": "7B",
    "hardware/one_gpu_24": "3B",
    "hardware/one_gpu_80_nf4": "14B",
    "hardware/two_gpu_80": "32B",
    "r1_searcher/stage1_llama": "Llama 8B",
    "r1_searcher/stage2_llama": "Llama 8B",
    "rag_r1/sft/demo": "demo",
    "real_small/": "135M",
    "smoke/": "demo",
}

#: Sizes of critics that are smaller than their policies, by the recipes' names.
_CRITICS = {"one_gpu_24_ppo": "0.5B", "one_gpu_80_ppo": "1.5B"}

Compose = Callable[[str, Sequence[str]], DictConfig]


def size_for(name: str) -> str:
    """The size of the model that a shipped recipe is for, a key of SHAPES."""
    return next((size for prefix, size in _SIZES.items() if name.startswith(prefix)), "7B")


def recipe_row(name: str, config: DictConfig, size: str) -> tuple[str, ...]:
    """One line of the table."""
    if config.get("actor_rollout_ref") is None:
        dtype, lora, rates = str(config.engine.model_dtype), "-", _rate(config.optim.lr)
    else:
        dtype, lora, rates = _trained_columns(config)
    count = "-" if config.trainer.device == "cpu" else str(gpu_count(config))
    return (
        name,
        size,
        dtype,
        lora,
        rates,
        count,
        *_memory_columns(memory_for(config, size, _CRITICS.get(name.strip("`").rpartition("/")[2], ""))),
    )


def memory_for(config: DictConfig, size: str, critic: str = "") -> MemoryEstimate:
    """Memory of a recipe with a model, and a critic, of these sizes, on the GPU that it names, or one of
    80 GB."""
    gpu = 1e9 * float(OmegaConf.select(config, "rag_r1.gpu_memory_gb") or 80)
    if config.get("actor_rollout_ref") is None:
        return sft_memory_of(config, SHAPES[size], gpu)
    return memory_of(config, SHAPES[size], gpu, SHAPES.get(critic))


def _trained_columns(config: DictConfig) -> tuple[str, str, str]:
    """Dtypes, adapters and rates of policy and critic, in words."""
    policy, critic = config.actor_rollout_ref, config.critic if needs_critic(config) else None
    dtypes = [
        "nf4" if is_nf4(config) else policy.actor.fsdp_config.model_dtype,
        *([critic.fsdp.model_dtype] if critic else []),
    ]
    rates = [_rate(policy.actor.optim.lr), *([f"critic {_rate(critic.optim.lr)}"] if critic else [])]
    merged = "merged" if policy.model.lora.merge else "not merged"
    rank = adapter_rank(config)
    if config.trainer.get("val_only"):
        rates = ["none: evaluates"]
    return "/".join(dict.fromkeys(dtypes)), f"rank {rank}, {merged}" if rank else "-", ", ".join(rates)


def _rate(value: Any) -> str:
    return f"{float(value):.0e}".replace("e-0", "e-")


def _memory_columns(memory: MemoryEstimate) -> tuple[str, ...]:
    """Memory in GB; a dash for what there is not."""
    update, critic = memory.bytes_of("update"), memory.bytes_of("critic")
    of_update = f"{update / 1e9:.0f}" if update else "-"
    if critic:
        of_update += f", critic {critic / 1e9:.0f}"
    generation = memory.bytes_of("generation")
    generated = f"{generation / 1e9:.0f}" if generation else "-"
    rows = f"{memory.rows:.0f}" if memory.rows else "-"
    host = f"{memory.host / 1e9:.{0 if memory.host >= 2e9 else 1}f}" if memory.host else "-"
    return of_update, generated, rows, host


def recipe_table(rows: Sequence[Sequence[str]]) -> str:
    """As Markdown."""
    return "\n".join(table(_COLUMNS, rows, "lllllrrrrr"))


def folder_of(name: str) -> str:
    """The folder whose README has a recipe's line; the demo's are in the README of all."""
    folder = name.partition("/")[0]
    return "" if folder == "demo" else folder


def recipe_tables(compose: Compose, folders: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """For each folder of recipes, or for these, its name and its table."""
    names = shipped_names("train", "sft")
    for folder in folders or sorted({folder_of(name) for name in names}):
        rows = [
            recipe_row(f"`{name.removeprefix(f'{folder}/')}`", compose(f"recipes/{name}", []), size_for(name))
            for name in names
            if folder_of(name) == folder
        ]
        yield folder, recipe_table(rows)
