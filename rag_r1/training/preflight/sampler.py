"""Checks the sampler: it fits veRL's trainer mode, and group filtering (DAPO) works."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from rag_r1.config.schema import RagR1Config, SamplerOptions, find_faults
from rag_r1.options.problems import Problem, error, plain, problem_of_fault, warning
from rag_r1.rewards import RewardSum
from rag_r1.training.preflight.sessions import REWARD_POOL, shares_reward_model, verls_mode

_SAMPLER = "trainer.v1.sampler.custom_sampler"
_KWARGS = "trainer.v1.sampler.sampler_kwargs"
_FILTER = "algorithm.filter_groups"
_NOT_PASSED = "to a sampler, and this recipe does not either"


def check_sampler(config: DictConfig) -> Iterator[Problem]:
    """Our sampler, if it is used, is the one for veRL's trainer mode, and its own keys are valid."""
    if not _is_ours(config):
        return
    mode, name = config.trainer.v1.trainer_mode, OmegaConf.select(config, f"{_SAMPLER}.name")
    right = "SearchReplayBuffer" if verls_mode(mode) == "sync" else "SearchReplayBufferAsync"
    if name != right:
        text = f"{name} does not fit trainer.v1.trainer_mode={mode}"
        yield error(f"{_SAMPLER}.name", text, f"add {_SAMPLER}.name={right}")
    options = plain(OmegaConf.select(config, _KWARGS)) or {}
    yield from map(problem_of_fault, find_faults(SamplerOptions.from_config, options))


def check_filtering(config: DictConfig, settings: RagR1Config | None) -> Iterator[Problem]:
    """If groups are to be filtered: they are, by a metric that exists, and with a limit."""
    key = "trainer.v1.sampler.sync_refill_failed_groups"
    if _is_ours(config) and OmegaConf.select(config, key):
        if not OmegaConf.select(config, f"{_KWARGS}.sync_refill_failed_groups"):
            remedy = f"build on rag_r1_defaults.yaml, or add ++{_KWARGS}.sync_refill_failed_groups=true"
            yield error(key, f"veRL does not pass it {_NOT_PASSED}", remedy)
    options = OmegaConf.select(config, _FILTER)
    if not (options and options.get("enable")):
        return
    n = int(config.actor_rollout_ref.rollout.n)
    if n < 2:
        text = f"with rollout.n={n} a group is one trajectory, and no two rewards can differ"
        remedy = "set actor_rollout_ref.rollout.n to 2 or more, or this to false"
        yield error(f"{_FILTER}.enable", text, remedy)
    if shares_reward_model(config):
        text = "the reward model shares the GPUs and judges after groups are filtered"
        yield error(REWARD_POOL, text, f"set {REWARD_POOL}=true")
    yield from _check_metric(config, settings)
    if _is_ours(config):
        if not OmegaConf.select(config, f"{_KWARGS}.filter_groups.enable"):
            remedy = f"build on rag_r1_defaults.yaml, or add ++{_KWARGS}.filter_groups='${{{_FILTER}}}'"
            yield error(f"{_KWARGS}.filter_groups", f"veRL does not pass {_FILTER} {_NOT_PASSED}", remedy)
        if int(options.get("max_num_gen_batches") or 0) <= 0:
            text = "0 is no limit: if all groups are all right or all wrong, generation never ends"
            yield warning(f"{_FILTER}.max_num_gen_batches", text, "set it, e.g. to 10")
    elif OmegaConf.select(config, f"{_SAMPLER}.path"):
        text = "veRL does not pass it to a custom sampler, so only that sampler's own code can filter"
        yield warning(f"{_FILTER}.enable", text, "use ours (rag_r1.plugin.sampler), or veRL's")


def _check_metric(config: DictConfig, settings: RagR1Config | None) -> Iterator[Problem]:
    metric = OmegaConf.select(config, f"{_FILTER}.metric")
    if metric == "reward" or config.reward.reward_manager.name != "search":
        return
    if settings is None or settings.protocol is None:  # reported by check_rag_r1_keys
        return
    reward, faults = RewardSum.read(settings.reward, settings.protocol)
    known = {"reward", *reward.unjudged()}
    if not faults and metric not in known:  # faults are reported by check_rag_r1_keys
        text = f"{metric!r} is neither `reward` nor a term of rag_r1.reward"
        yield error(f"{_FILTER}.metric", text, f"use one of {', '.join(sorted(known))}")


def _is_ours(config: DictConfig) -> bool:
    return OmegaConf.select(config, f"{_SAMPLER}.path") == "pkg://rag_r1.plugin.sampler"
