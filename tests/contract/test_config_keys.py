"""The keys of veRL that recipes set and that our code names are keys of veRL's own YAML.

Hydra takes any key from a file: one that veRL has renamed would be there, and mean nothing.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.contract.verl_source import ROOT

#: Keys that veRL's YAML does not have: its classes, or ours that extend one, do, it passes them on, or our
#: data sets read them.
MORE_KEYS = (
    "actor_rollout_ref.actor.checkpoint.save_lora_only",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.actor.policy_loss.llds_coef",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.rollout.enable_sleep_mode",
    "critic.fsdp.infer_micro_batch_size_per_gpu",
    "critic.fsdp.micro_batch_size_per_gpu",
    "critic.fsdp.mixed_precision",
    "critic.fsdp.use_dynamic_bsz",
    "critic.megatron.infer_micro_batch_size_per_gpu",
    "critic.megatron.micro_batch_size_per_gpu",
    "critic.megatron.use_dynamic_bsz",
    "critic.ppo_infer_max_token_len_per_gpu",
    "data.probe_passages",
    "data.probes",
    "data.protocol",
    "engine.mixed_precision",
    "ray_kwargs.ray_init",
)
OURS = ("rag_r1.", "defaults", "hydra.")  # Hydra's own, too
#: YAMLs in recipes/ for commands of our own, and for LLaMA-Factory.
OTHERS = ("agentic_r/iterate", "agentic_r/retriever_", "checkpoints/", "rag_r1/sft/llama_factory")
RECIPES = [
    path
    for path in sorted((ROOT / "recipes").rglob("*.yaml"))
    if not path.relative_to(ROOT / "recipes").as_posix().startswith(OTHERS)
]
KEY = re.compile(
    r"(actor_rollout_ref|algorithm|critic|data|reward|ray_kwargs|trainer|transfer_queue)(\.[a-z]\w*)+"
)
#: What looks like such a key: one of a plan of `rag-r1 iterate`, files in an archive and in a checkpoint, the
#: beginning of keys.
NO_KEYS = {"data.questions", "data.pkl", "data.pt", "actor_rollout_ref.ref.log_prob"}


def load(path: Path) -> dict:
    return yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}


@cache
def of_verl(name: str) -> dict:
    """A configuration of veRL: `ppo`, `ppo_megatron`, or `sft` with the files that it is made from."""
    if find_spec("verl") is None:
        pytest.skip("veRL is not installed: its keys cannot be compared")
    folder = Path(find_spec("verl").submodule_search_locations[0], "trainer", "config")
    if name != "sft":
        return load(folder / f"_generated_{name}_trainer.yaml")
    config = load(folder / "sft_trainer_engine.yaml")
    for entry in config.pop("defaults"):
        if isinstance(entry, dict):
            ((group, file),) = entry.items()
            group, _, key = group.partition("@")
            config[key] = {**load(folder / group / f"{file}.yaml"), **config.get(key, {})}
    return config


def leaves(config: dict, above: str = "") -> list[str]:
    """The dotted keys of all values that are no mappings."""
    keys = []
    for key, value in config.items():
        keys += leaves(value, f"{above}{key}.") if isinstance(value, dict) and value else [f"{above}{key}"]
    return keys


def holds(config: dict, key: str) -> bool:
    """Whether the key is there; below an empty mapping, or null, any key is."""
    for name in key.split("."):
        if config in ({}, None):
            return True
        if not isinstance(config, dict) or name not in config:
            return False
        config = config[name]
    return True


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.relative_to(ROOT / "recipes").as_posix())
def test_every_key_of_a_recipe_exists_in_verl(recipe):
    is_sft = "sft" in (recipe.parent.name, recipe.stem)
    kind = "sft" if is_sft else "ppo_megatron" if recipe.stem == "megatron" else "ppo"
    keys = [key for key in leaves(load(recipe)) if not key.startswith((*OURS, *MORE_KEYS))]
    assert [key for key in keys if not holds(of_verl(kind), key)] == []


def test_every_key_of_verl_that_our_code_names_exists():
    kinds = [of_verl(name) for name in ("ppo", "ppo_megatron", "sft")]
    missing = []
    for path in sorted((ROOT / "rag_r1").rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if KEY.search(text) else ():
            key = node.value if isinstance(node, ast.Constant) else None
            if isinstance(key, str) and KEY.fullmatch(key) and not key.startswith((*MORE_KEYS, *NO_KEYS)):
                if not any(holds(kind, key) for kind in kinds):
                    missing.append(f"{path.relative_to(ROOT)}: {key}")
    assert missing == []


def test_a_key_that_verl_does_not_have_is_found():
    assert leaves({"a": {"b": 1, "c": {}}, "d": [2]}) == ["a.b", "a.c", "d"]
    assert holds({"a": {"b": {}}}, "a.b.anything") and holds({"a": None}, "a.b")
    assert not holds({"a": {"b": 1}}, "a.c") and not holds({"a": {"b": 1}}, "a.b.c")
    assert not holds(of_verl("ppo"), "trainer.no_such_key") and holds(of_verl("sft"), "optim.lr")
