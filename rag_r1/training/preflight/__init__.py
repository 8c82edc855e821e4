"""Preflight: all checks of a run that need no GPU, made before it starts.

Each `check_*` is a function from the composed configuration to Problems; `preflight` calls them all
and reports all problems at once: a problem found by one check does not prevent the others. Nothing is started
and nothing is written. veRL's own `validate_config` is one of the checks.
"""

from __future__ import annotations

from omegaconf import DictConfig

from rag_r1.options.problems import PreflightReport, Problem
from rag_r1.training.preflight.cluster import check_batch_sizes, check_engines, check_reachability
from rag_r1.training.preflight.data import check_data, check_steps
from rag_r1.training.preflight.memory.check import check_memory
from rag_r1.training.preflight.model import (
    check_critic,
    check_model,
    check_quantisation,
    check_tags,
    check_turns,
)
from rag_r1.training.preflight.nf4 import check_nf4
from rag_r1.training.preflight.probes import check_probes
from rag_r1.training.preflight.resume import check_resumed_rates, check_run_folder
from rag_r1.training.preflight.retriever import check_retriever
from rag_r1.training.preflight.sampler import check_filtering, check_sampler
from rag_r1.training.preflight.sessions import check_sessions, needs_critic
from rag_r1.training.preflight.settings import (
    check_lengths,
    check_llds,
    check_log_probs,
    check_rag_r1_keys,
    check_required_keys,
    check_verl,
    check_verls_keys,
    wrong_types,
)
from rag_r1.training.preflight.sft import preflight_sft
from rag_r1.training.preflight.weight_transfer import check_bucket

__all__ = ["Problem", "PreflightReport", "check_retriever", "preflight", "preflight_sft"]

#: Keys that the checks calculate with.
NUMBERS = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *("actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.max_model_len"),
    *("actor_rollout_ref.rollout.tensor_model_parallel_size", "actor_rollout_ref.actor.ppo_mini_batch_size"),
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", "trainer.total_training_steps"),
    *("trainer.save_freq", "trainer.test_freq"),
)


def preflight(config: DictConfig) -> PreflightReport:
    """Run every check on a composed configuration. Faults in what is checked are reported, never raised."""
    report = PreflightReport()
    _check(config, report)
    check_retriever(config, report)
    return report


def _check(config: DictConfig, report: PreflightReport) -> None:
    """All checks but that of the retrieval server."""
    report.problems += check_required_keys(config)
    if missing := list(check_verls_keys(config)):
        report.problems += missing
        return  # the other checks read these
    settings, problems = check_rag_r1_keys(config)
    report.problems += problems
    tokenizer, problems = check_model(config)
    report.problems += problems
    if wrong := wrong_types(config, NUMBERS):
        report.problems += wrong
        return  # the other checks calculate with these
    for check in (check_quantisation, check_nf4, check_bucket):
        report.problems += check(config)
    report.problems += (critic_problems := check_critic(config))
    report.problems += check_verl(config, has_model=tokenizer is not None and not critic_problems)
    for check in (
        check_lengths,
        check_log_probs,
        check_llds,
        check_batch_sizes,
        check_engines,
        check_reachability,
    ):
        report.problems += check(config)
    report.problems += check_memory(config, report)
    report.problems += check_resumed_rates(config, critic=needs_critic(config))
    report.problems += check_run_folder(config)
    report.problems += check_sampler(config)
    for check in (check_filtering, check_sessions, check_probes):
        report.problems += check(config, settings)
    if settings is not None and settings.protocol is not None and tokenizer is not None:
        report.problems += check_tags(settings.protocol, tokenizer)
        if unfit := list(check_turns(config, settings, tokenizer)):
            report.problems += unfit
            tokenizer = None  # no prompt can be made with it
    train_rows = check_data(config, settings, tokenizer, report)
    if train_rows is not None:
        report.problems += check_steps(config, train_rows)
