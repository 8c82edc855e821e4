"""Checks the sampler: it fits veRL's trainer mode, and group filtering (DAPO) works."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from rag_r1.config.schema import RagR1Config, SamplerOptions, find_faults
from rag_r1.options.problems import Problem, error, plain, problem_of_fault, warning
from rag_r1.rewards import RewardSum
from rag_r1.training.preflight.sessions import verls_mode

_SAMPLER = "trainer.v1.sampler.custom_sampler"
_KWARGS = "trainer.v1.sampler.sampler_kwargs"
_FILTER = "algorithm.filter_groups"


def check_sampler(config: DictConfig) -> list[Problem]:
    """Our sampler, if it is used, is the one for veRL's trainer mode."""
    mode = config.trainer.v1.trainer_mode
    sampler = OmegaConf.select(config, _SAMPLER)
    if not _is_ours(config):
        return []
    right = "SearchReplayBuffer" if verls_mode(mode) == "sync" else "SearchReplayBufferAsync"
    if sampler.name == right:
        return []
    text = f"{sampler.name} does not fit trainer.v1.trainer_mode={mode}"
    return [error(f"{_SAMPLER}.name", text, f"add {_SAMPLER}.name={right}")]


def check_sampler_options(config: DictConfig) -> list[Problem]:
    """The sampler's own keys are known and valid."""
    options = plain(OmegaConf.select(config, _KWARGS))
    return (
        list(map(problem_of_fault, find_faults(SamplerOptions.from_config, options or {})))
        if _is_ours(config)
        else []
    )


def check_filtering(config: DictConfig, settings: RagR1Config | None) -> list[Problem]:
    """If groups are to be filtered: they are, by a metric that exists, and with a limit."""
    problems = _check_refill(config)
    chosen = OmegaConf.select(config, _FILTER)
    if not (chosen and chosen.get("enable")):
        return problems
    n = int(config.actor_rollout_ref.rollout.n)
    if n < 2:
        text = f"with rollout.n={n} a group is one trajectory, and no two rewards can differ"
        problems.append(
            error(f"{_FILTER}.enable", text, "set actor_rollout_ref.rollout.n to 2 or more, or this to false")
        )
    model = config.reward.reward_model
    if model.enable and not model.enable_resource_pool:
        text = "the reward model shares the GPUs and judges after groups are filtered"
        remedy = "set reward.reward_model.enable_resource_pool=true"
        problems.append(error("reward.reward_model.enable_resource_pool", text, remedy))
    problems += _check_metric(config, settings)
    if _is_ours(config):
        if not OmegaConf.select(config, f"{_KWARGS}.filter_groups.enable"):
            text = "veRL does not pass algorithm.filter_groups to a sampler, and this recipe does not either"
            remedy = f"build on rag_r1_defaults.yaml, or add ++{_KWARGS}.filter_groups='${{{_FILTER}}}'"
            problems.append(error(f"{_KWARGS}.filter_groups", text, remedy))
        if int(chosen.get("max_num_gen_batches") or 0) <= 0:
            text = "0 is no limit: if all groups are all right or all wrong, generation never ends"
            problems.append(warning(f"{_FILTER}.max_num_gen_batches", text, "set it, e.g. to 10"))
    elif OmegaConf.select(config, f"{_SAMPLER}.path"):
        text = "veRL does not pass it to a custom sampler, so only that sampler's own code can filter"
        problems.append(warning(f"{_FILTER}.enable", text, "use ours (rag_r1.plugin.sampler), or veRL's"))
    return problems


def _check_metric(config: DictConfig, settings: RagR1Config | None) -> list[Problem]:
    metric = OmegaConf.select(config, f"{_FILTER}.metric")
    if metric == "reward" or config.reward.reward_manager.name != "search":
        return []
    if settings is None or settings.protocol is None:  # reported by check_rag_r1_keys
        return []
    try:
        known = {"reward", *RewardSum.from_config(settings.reward, settings.protocol).unjudged()}
    except (ValueError, TypeError):
        return []  # reported by check_rag_r1_keys
    if metric in known:
        return []
    text = f"{metric!r} is neither `reward` nor a term of rag_r1.reward"
    return [error(f"{_FILTER}.metric", text, f"use one of {', '.join(sorted(known))}")]


def _check_refill(config: DictConfig) -> list[Problem]:
    key = "trainer.v1.sampler.sync_refill_failed_groups"
    if not (_is_ours(config) and OmegaConf.select(config, key)):
        return []
    if OmegaConf.select(config, f"{_KWARGS}.sync_refill_failed_groups"):
        return []
    remedy = f"build on rag_r1_defaults.yaml, or add ++{_KWARGS}.sync_refill_failed_groups=true"
    return [error(key, "veRL does not pass it to a sampler, and this recipe does not either", remedy)]


def _is_ours(config: DictConfig) -> bool:
    return OmegaConf.select(config, f"{_SAMPLER}.path") == "pkg://rag_r1.plugin.sampler"
