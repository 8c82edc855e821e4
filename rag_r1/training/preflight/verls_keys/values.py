"""Checks those values of veRL's keys that its own validation takes unchecked.

With such a value a run ends late, or trains nothing. There is a table of ranges, and one of the names that
veRL looks up. Names are asked of veRL when the check is made, with those that plugins have registered. A
module of the user that only the processes of the run import may register more: with one any name is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from rag_r1.options.problems import Problem, error, is_unset, plain
from rag_r1.training.added_overrides import RAY_VARIABLES
from rag_r1.training.config_facts import needs_critic

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
#: The values of trainer.resume_mode in all of veRL's trainers, which compare it with each.
_RESUME_MODES = ("auto", "disable", "resume_path")
#: What a checkpoint can contain (verl/utils/checkpoint/checkpoint_manager.py, `BaseCheckpointManager`).
_CONTENTS = ("model", "optimizer", "extra", "hf_model")
#: Keys that name a module of the user, which may register names.
_MODULES = (
    *("actor_rollout_ref.model.external_lib", "critic.model.external_lib", "model.external_lib"),
    *("data.custom_cls.path", "reward.custom_reward_function.path"),
    *(f"{_ROLLOUT}.agent.agent_loop_config_path", f"{_ROLLOUT}.agent.agent_loop_manager_class"),
    *("trainer.v1.sampler.custom_sampler.path", f"{RAY_VARIABLES}.VERL_USE_EXTERNAL_MODULES"),
)


@dataclass(frozen=True)
class _Range:
    """The numbers from `low` to `high`; `low` itself is none of them if `is_open`."""

    low: float
    high: float = math.inf
    is_open: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.is_open and value == self.low)

    def __str__(self) -> str:
        low = "" if self.low == -math.inf else f"{'above' if self.is_open else 'of at least'} {self.low:g}"
        high = "" if self.high == math.inf else f"{'at most' if low else 'of at most'} {self.high:g}"
        return f"a number {' and '.join(filter(None, (low, high)))}"


_SHARE, _UNIT, _NOT_NEGATIVE, _COUNT = _Range(0, 1, is_open=True), _Range(0, 1), _Range(0), _Range(1)
#: Keys of an optimizer. A share of warm-up below 0 counts as 0, and Megatron clips nothing at 0.
_OPTIMIZER = {
    "weight_decay": _NOT_NEGATIVE,
    "lr_warmup_steps_ratio": _Range(-math.inf, 1),
    "clip_grad": _NOT_NEGATIVE,
}
#: Keys of FSDP's optimizer: gradients that are clipped at 0 are 0.
_FSDP_OPTIMIZER = {**_OPTIMIZER, "clip_grad": _Range(0, is_open=True)}
_RANGES = {
    f"{_ROLLOUT}.gpu_memory_utilization": _SHARE,
    f"{_ROLLOUT}.top_p": _SHARE,
    f"{_ROLLOUT}.val_kwargs.top_p": _SHARE,
    f"{_ROLLOUT}.temperature": _NOT_NEGATIVE,
    f"{_ROLLOUT}.val_kwargs.temperature": _NOT_NEGATIVE,
    f"{_ROLLOUT}.val_kwargs.n": _COUNT,
    f"{_ROLLOUT}.agent.num_workers": _COUNT,
    f"{_ACTOR}.clip_ratio": _NOT_NEGATIVE,
    f"{_ACTOR}.clip_ratio_low": _NOT_NEGATIVE,
    f"{_ACTOR}.clip_ratio_high": _NOT_NEGATIVE,
    "algorithm.gamma": _UNIT,
    "algorithm.lam": _UNIT,
    "data.val_batch_size": _NOT_NEGATIVE,
    "data.dataloader_num_workers": _NOT_NEGATIVE,
    "data.num_workers": _NOT_NEGATIVE,
}


def check_values(config: DictConfig) -> Iterator[Problem]:
    """Check the numbers and names of a training, or of a supervised fine-tuning."""
    is_training = "actor_rollout_ref" in config
    roles = [""]
    if is_training:
        roles = [f"{_ACTOR}.", *(["critic."] if needs_critic(config) else [])]
    yield from _check_ranges(config, roles)
    yield from _check_name(config, "trainer.resume_mode", _RESUME_MODES)
    if is_training:
        yield from _check_divergence(config, "algorithm.use_kl_in_reward", "algorithm.kl_penalty")
        yield from _check_divergence(config, f"{_ACTOR}.use_kl_loss", f"{_ACTOR}.kl_loss_type")
    if _has_module(config):
        return
    yield from _check_name(config, "trainer.device", _devices())
    for role in roles:
        key = f"{role}checkpoint.save_contents"
        contents = plain(OmegaConf.select(config, key))
        for part in contents if isinstance(contents, list) else ():  # others are reported by check_types
            yield from _unknown(key, part, _CONTENTS)
    if is_training:
        for key, names in _registered(config).items():
            yield from _check_name(config, key, names)


def _check_ranges(config: DictConfig, roles: Sequence[str]) -> Iterator[Problem]:
    """Check that numbers are in their ranges, except those that are taken from other keys. Other values are
    reported by `check_types`. `roles` begin the keys of the trained models."""
    ranges = dict(_RANGES)
    for role in roles:
        target = str(OmegaConf.select(config, f"{role}optim._target_"))
        keys = _FSDP_OPTIMIZER if target.endswith(".FSDPOptimizerConfig") else _OPTIMIZER
        ranges |= {f"{role}optim.{name}": numbers for name, numbers in keys.items()}
        ranges[f"{role}ppo_epochs"] = _COUNT
    for key, numbers in ranges.items():
        section, _, name = key.rpartition(".")
        value = OmegaConf.select(config, key)
        is_own = type(value) in (int, float) and not OmegaConf.is_interpolation(
            OmegaConf.select(config, section), name
        )
        if is_own and value not in numbers:
            yield error(key, f"is {value!r}", f"give {numbers}")


def _check_name(config: DictConfig, key: str, names: Iterable[str]) -> Iterator[Problem]:
    """Check that the value of a key, if it has one, is one of these names."""
    if not is_unset(config, key):
        yield from _unknown(key, OmegaConf.select(config, key), names)


def _unknown(key: str, value: object, names: Iterable[str]) -> Iterator[Problem]:
    """Yield a Problem if a value is none of these names."""
    if value not in (known := sorted({*map(str, names)})):
        yield error(key, f"there is no {value!r} in veRL", f"use one of {', '.join(known)}")


def _check_divergence(config: DictConfig, switch: str, key: str) -> Iterator[Problem]:
    """Check that veRL computes the KL divergence that a key names, if the key `switch` is on."""
    import torch
    from verl.trainer.ppo.core_algos import kl_penalty

    name = OmegaConf.select(config, key)
    if not OmegaConf.select(config, switch) or not isinstance(name, str):
        return
    try:
        kl_penalty(torch.zeros(1), torch.zeros(1), name)
    except NotImplementedError:
        yield error(key, f"veRL does not compute {name!r}", "use kl, abs, mse or low_var_kl")


def _devices() -> list[str]:
    """Return the devices of the platforms that are registered."""
    from verl.plugin.platform.platform_manager import PlatformRegistry

    platforms = map(PlatformRegistry.get, PlatformRegistry.registered_names())
    return [platform().device_name for platform in platforms if platform is not None]


def _registered(config: DictConfig) -> dict[str, Collection[str]]:
    """Return keys with a name, and the names that are registered in veRL for each."""
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    names: dict[str, Collection[str]] = {
        "algorithm.adv_estimator": ADV_ESTIMATOR_REGISTRY,
        f"{_ACTOR}.policy_loss.loss_mode": POLICY_LOSS_REGISTRY,
        f"{_ROLLOUT}.agent.default_agent_loop": agent_loops(config) or (),
    }
    if OmegaConf.select(config, "reward.reward_manager.source") == "register":
        names["reward.reward_manager.name"] = REWARD_MANAGER
    return names


def agent_loops(config: DictConfig) -> Collection[str] | None:
    """Return the names of the agent loops; None if a module of the user may register more."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    return None if _has_module(config) else set(_agent_loop_registry)


def _has_module(config: DictConfig) -> bool:
    """Return whether the processes of the run import a module that is neither veRL's nor ours."""
    values = (OmegaConf.select(config, key) or [] for key in _MODULES)
    names = (str(item) for value in values for item in (str(value).split(",") if value else ()))
    return any(not name.removeprefix("pkg://").startswith(("rag_r1.", "verl.")) for name in names)
