"""The table that `rag-r1 recipes table` prints: shipped recipes with dtype, learning rates and memory.

The tables in the recipes' READMEs, one for each folder, are the output of this command. A test composes the
recipes again and compares the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rag_r1.config.recipes import shipped_names
from rag_r1.runs.markdown import table
from rag_r1.training.config_facts import adapter_rank, gpu_count, is_nf4, needs_critic
from rag_r1.training.preflight.memory.estimate import MemoryEstimate, memory_of, sft_memory_of
from rag_r1.training.preflight.memory.shape import SHAPES
from rag_r1.training.preflight.memory.table import gb

_COLUMNS = (
    "recipe", "model", "`model_dtype`", "LoRA", "learning rate", "GPUs", "update, GB", "generation, GB",
    "rows in its cache", "host, GB",
)  # fmt: skip
#: Prefix of a recipe's name -> the size of the model that it is for. The first one that fits counts, so a
#: prefix stands after longer ones that begin with it. All other recipes are for 7B.
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

#: Name of a recipe -> the size of its critic, if that is smaller than the policy.
_CRITICS = {"hardware/one_gpu_24_ppo": "0.5B", "hardware/one_gpu_80_ppo": "1.5B"}

#: Composes a recipe with overrides.
Compose = Callable[[str, Sequence[str]], DictConfig]


def size_for(name: str) -> str:
    """Return the size of the model that a recipe is for, a key of SHAPES; 7B for a recipe that is not
    shipped."""
    return next((size for prefix, size in _SIZES.items() if name.startswith(prefix)), "7B")


def recipe_row(name: str, config: DictConfig, size: str, folder: str = "") -> tuple[str, ...]:
    """Return the row of the table for the recipe `name`, whose configuration is `config`, with a model of
    this size. `folder` is left out of the recipe's name in the row."""
    if config.get("actor_rollout_ref") is None:
        dtype, lora, rates = str(config.engine.model_dtype), "-", _rate(config.optim.lr)
    else:
        dtype, lora, rates = _trained_columns(config)
    count = "-" if config.trainer.device == "cpu" else str(gpu_count(config))
    label = f"`{name.removeprefix(f'{folder}/')}`"
    return (label, size, dtype, lora, rates, count, *_memory_columns(memory_for(name, config, size)))


def memory_for(name: str, config: DictConfig, size: str) -> MemoryEstimate:
    """Estimate the memory of the recipe `name` with a model of this size, on the GPU that the recipe names,
    or else on one of 80 GB. The critic has the size in `_CRITICS`, or else that of the policy."""
    gpu_bytes = 1e9 * float(OmegaConf.select(config, "rag_r1.gpu_memory_gb") or 80)
    if config.get("actor_rollout_ref") is None:
        return sft_memory_of(config, SHAPES[size], gpu_bytes)
    return memory_of(config, SHAPES[size], gpu_bytes, SHAPES.get(_CRITICS.get(name, "")))


def _trained_columns(config: DictConfig) -> tuple[str, str, str]:
    """Return the columns with the dtypes, the adapters and the learning rates of policy and critic."""
    policy = config.actor_rollout_ref
    critic = config.critic if needs_critic(config) else None
    policy_dtype = "nf4" if is_nf4(config) else policy.actor.fsdp_config.model_dtype
    dtypes = [policy_dtype, *([critic.fsdp.model_dtype] if critic else [])]
    rates = [_rate(policy.actor.optim.lr), *([f"critic {_rate(critic.optim.lr)}"] if critic else [])]
    merged = "merged" if policy.model.lora.merge else "not merged"
    rank = adapter_rank(config)
    if config.trainer.get("val_only"):
        rates = ["none: evaluates"]
    return "/".join(dict.fromkeys(dtypes)), f"rank {rank}, {merged}" if rank else "-", ", ".join(rates)


def _rate(value: Any) -> str:
    """Return a learning rate as the table shows it: `1e-6`, `2.5e-5`."""
    mantissa, _, exponent = f"{float(value):e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _memory_columns(memory: MemoryEstimate) -> tuple[str, ...]:
    """Return the last four columns, in GB and rows, with a dash for what the training does not have."""
    update = gb(memory.phase_bytes("update"), 0)
    if critic_bytes := memory.phase_bytes("critic"):
        update += f", critic {gb(critic_bytes, 0)}"
    rows = f"{memory.cached_contexts:.0f}" if memory.cached_contexts else "-"
    host_decimals = 0 if memory.host_bytes >= 2e9 else 1
    return update, gb(memory.phase_bytes("generation"), 0), rows, gb(memory.host_bytes, host_decimals)


def recipe_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the table with these rows in Markdown."""
    return "\n".join(table(_COLUMNS, rows, "lllllrrrrr"))


def folder_of(name: str) -> str:
    """Return the folder whose README has a recipe's row. It is "" for the demo's recipes, which are in the
    README of all recipes."""
    folder = name.partition("/")[0]
    return "" if folder == "demo" else folder


def recipe_tables(compose: Compose, folders: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the name and the table of each of the `folders` of recipes, by default of all. `compose` is
    called with each recipe and its overrides."""
    names = shipped_names("train", "sft")
    for folder in folders or sorted({folder_of(name) for name in names}):
        rows = [
            recipe_row(name, compose(f"recipes/{name}", []), size_for(name), folder)
            for name in names
            if folder_of(name) == folder
        ]
        yield folder, recipe_table(rows)
