"""Checks that the sampler fits veRL's trainer mode, and that the filtering of groups (DAPO) works.

veRL 0.9.1 passes only `sampler_kwargs` to a custom sampler. So veRL's settings for refilling failed groups
and for filtering groups must be repeated there for our sampler, as rag_r1_defaults.yaml does.
"""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from rag_r1.config.schema import RagR1Config, SamplerOptions, find_faults
from rag_r1.options.problems import Problem, error, plain, problem_of_fault, warning
from rag_r1.rewards import RewardSum
from rag_r1.training.config_facts import VERLS_MODES, verls_mode
from rag_r1.training.preflight.sessions import REWARD_POOL, shares_reward_model

_SAMPLER = "trainer.v1.sampler.custom_sampler"
_KWARGS = "trainer.v1.sampler.sampler_kwargs"
_FILTER = "algorithm.filter_groups"
_SIZE = "actor_rollout_ref.rollout.n"
#: Estimators that compare the answers to a question. The advantage of a single answer is its reward (with the
#: last three its rewards-to-go), which gdpo and reinforce_plus_plus_baseline still whiten by the batch.
COMPARING = (
    *("grpo", "grpo_vectorized", "gpg", "rloo", "opo", "gdpo", "reinforce_plus_plus_baseline"),
    *("optimal_token_baseline", "tir_optimal_token_baseline", "turn_loo"),
)
#: The other estimators of veRL 0.9.1 that compare answers -> what they do with a single one
#: (verl/trainer/ppo/core_algos.py, `compute_rloo_vectorized_outcome_advantage`,
#: `compute_grpo_passk_outcome_advantage`).
UNUSABLE = {"rloo_vectorized": "every advantage is 0", "grpo_passk": "veRL ends with an error"}


def check_sampler(config: DictConfig) -> Iterator[Problem]:
    """Check that our sampler, if it is used, is the one for veRL's trainer mode, and that its keys are
    valid. A mode that is neither veRL's nor ours may be that of a user's trainer."""
    if not _uses_our_sampler(config):
        return
    mode, name = str(config.trainer.v1.trainer_mode), OmegaConf.select(config, f"{_SAMPLER}.name")
    expected = "SearchReplayBuffer" if verls_mode(mode) == "sync" else "SearchReplayBufferAsync"
    modes = [f"{prefix}{own}" for prefix in ("search_", "sessions_", "") for own in VERLS_MODES]
    if mode not in modes and (name != expected or mode != verls_mode(mode)):
        remedy = f"set it to one of {', '.join(modes)}"
        yield error("trainer.v1.trainer_mode", f"there is no mode {mode}", remedy)
    elif name != expected:
        text = f"{name} does not fit trainer.v1.trainer_mode={mode}"
        yield error(f"{_SAMPLER}.name", text, f"add {_SAMPLER}.name={expected}")
    options = plain(OmegaConf.select(config, _KWARGS)) or {}
    yield from map(problem_of_fault, find_faults(SamplerOptions.from_config, options))


def check_filtering(config: DictConfig, settings: RagR1Config | None) -> Iterator[Problem]:
    """Check that the settings for refilling and filtering groups take effect. If groups are filtered, there
    must be a metric that exists, and there should be a limit."""
    yield from _check_refill(config)
    options = OmegaConf.select(config, _FILTER)
    if options and options.get("enable"):
        yield from _check_reward_pool(config)
        yield from _check_metric(config, settings)
        yield from _check_sampler_filter(config, options)


def _check_refill(config: DictConfig) -> Iterator[Problem]:
    """Check that veRL's switch for refilling failed groups reaches our sampler."""
    key = "trainer.v1.sampler.sync_refill_failed_groups"
    if not (_uses_our_sampler(config) and OmegaConf.select(config, key)):
        return
    if not OmegaConf.select(config, f"{_KWARGS}.sync_refill_failed_groups"):
        text = "veRL does not pass it to a sampler, and this recipe does not either"
        remedy = f"build on rag_r1_defaults.yaml, or add ++{_KWARGS}.sync_refill_failed_groups=true"
        yield error(key, text, remedy)


def check_group_size(config: DictConfig) -> Iterator[Problem]:
    """Check that a group has several trajectories, if they are filtered or compared. Comparing none is a
    warning, since it may be meant."""
    n, estimator = OmegaConf.select(config, _SIZE), OmegaConf.select(config, "algorithm.adv_estimator")
    if not isinstance(n, int) or n > 1:  # another type is reported by wrong_types
        return
    if OmegaConf.select(config, f"{_FILTER}.enable"):
        text = f"with rollout.n={n} a group is one trajectory, and no two rewards can differ"
        yield error(f"{_FILTER}.enable", text, f"set {_SIZE} to 2 or more, or {_FILTER}.enable to false")
    elif estimator in (*COMPARING, *UNUSABLE) and not OmegaConf.select(config, "trainer.val_only"):
        effect = UNUSABLE.get(estimator, "the advantage is its reward, without a baseline from others")
        problem = error if estimator in UNUSABLE else warning
        text = f"is {n}, but {estimator} compares the answers to a question; with one, {effect}"
        remedy = "set it to 2 or more, or algorithm.adv_estimator=reinforce_plus_plus, which has no groups"
        yield problem(_SIZE, text, remedy)


def _check_reward_pool(config: DictConfig) -> Iterator[Problem]:
    """Check that the rewards are known when groups are filtered."""
    if shares_reward_model(config):
        text = "the reward model shares the GPUs and judges after groups are filtered"
        yield error(REWARD_POOL, text, f"set {REWARD_POOL}=true")


def _check_sampler_filter(config: DictConfig, options: DictConfig) -> Iterator[Problem]:
    """Check that the options reach our sampler, with a limit. To another custom sampler they are not
    passed."""
    if _uses_our_sampler(config):
        if not OmegaConf.select(config, f"{_KWARGS}.filter_groups.enable"):
            text = f"veRL does not pass {_FILTER} to a sampler, and this recipe does not either"
            remedy = f"build on rag_r1_defaults.yaml, or add ++{_KWARGS}.filter_groups='${{{_FILTER}}}'"
            yield error(f"{_KWARGS}.filter_groups", text, remedy)
        limit = options.get("max_num_gen_batches")
        if not isinstance(limit, int) or limit <= 0:
            text = f"{limit} is not a limit: if all groups are all right or all wrong, generation never ends"
            yield warning(f"{_FILTER}.max_num_gen_batches", text, "set it to 10, say")
    elif OmegaConf.select(config, f"{_SAMPLER}.path"):
        text = "veRL does not pass it to a custom sampler, so only that sampler's own code can filter"
        yield warning(f"{_FILTER}.enable", text, "use ours (rag_r1.plugin.sampler), or veRL's")


def _check_metric(config: DictConfig, settings: RagR1Config | None) -> Iterator[Problem]:
    """Check that the metric by which groups are filtered is the reward or one of its terms."""
    metric = OmegaConf.select(config, f"{_FILTER}.metric")
    if metric == "reward" or config.reward.reward_manager.name != "search":
        return
    if settings is None or settings.protocol is None:  # reported by check_rag_r1_keys
        return
    reward, faults = RewardSum.read(settings.reward, settings.protocol)
    keys = {"reward", *reward.unjudged()}  # `unjudged` has the keys of all terms
    if not faults and metric not in keys:  # faults are reported by check_rag_r1_keys
        unknown = f"{metric!r} is neither `reward` nor a term of rag_r1.reward"
        text = "it is not set" if metric is None else unknown
        yield error(f"{_FILTER}.metric", text, f"use one of {', '.join(sorted(keys))}")


def _uses_our_sampler(config: DictConfig) -> bool:
    return OmegaConf.select(config, f"{_SAMPLER}.path") == "pkg://rag_r1.plugin.sampler"
