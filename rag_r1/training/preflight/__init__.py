"""The preflight: all checks of a training that need no GPU, made before it starts.

A `check_*` gets the composed configuration and returns a Problem for each fault; its docstring says what it
checks. Some also return what later checks need, such as the tokenizer, or add notes and tables to the report.
`preflight` calls all checks, including veRL's own `validate_config`, and reports all problems at once. A
problem that one check finds only prevents those that would depend on it (`without`, `found`). Nothing is
started or written.
"""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from rag_r1.options.problems import PreflightReport, Problem, found, without
from rag_r1.training.config_facts import needs_critic
from rag_r1.training.loggers import check_loggers
from rag_r1.training.preflight import cluster, data, model, nf4, probes, resume, sampler, sessions, settings
from rag_r1.training.preflight.memory.check import check_memory
from rag_r1.training.preflight.retriever import check_retriever
from rag_r1.training.preflight.sft import preflight_sft
from rag_r1.training.preflight.verls_keys.validation import check_verl
from rag_r1.training.preflight.verls_keys.values import check_values
from rag_r1.training.preflight.weight_transfer import check_bucket

__all__ = ["Problem", "PreflightReport", "check_retriever", "preflight", "preflight_sft"]

#: Keys with whole numbers, with which the checks calculate.
NUMBERS = (
    *("data.train_batch_size", "data.max_prompt_length", "data.max_response_length"),
    *("actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.max_model_len"),
    *("actor_rollout_ref.rollout.tensor_model_parallel_size", "actor_rollout_ref.actor.ppo_mini_batch_size"),
    *("trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs", "trainer.total_training_steps"),
    *("trainer.save_freq", "trainer.test_freq", "trainer.max_actor_ckpt_to_keep"),
    *("data.train_max_samples", "data.val_max_samples", "trainer.v1.separate_async.parameter_sync_step"),
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
)


def preflight(config: DictConfig) -> PreflightReport:
    """Run every check on a composed configuration. Problems are reported and never raised."""
    report = PreflightReport()
    _check_configuration(config, report)
    report.problems = [*dict.fromkeys(report.problems)]  # several checks may read a key that is not there
    check_retriever(config, report)
    return report


def _check_configuration(config: DictConfig, report: PreflightReport) -> None:
    """Run all checks except that of the retrieval server. A check that depends on something that another
    check has refused is skipped."""
    report.problems += settings.check_required_keys(config)
    if missing := list(settings.check_verls_keys(config)):
        report.problems += missing
        return  # the other checks read these
    rag_r1_config, problems = settings.check_rag_r1_keys(config)
    wrong = [*data.check_paths(config), *settings.wrong_types(config, NUMBERS)]
    wrong_keys = {problem.where for problem in wrong}
    report.problems += [*(problem for problem in problems if problem.where not in wrong_keys), *wrong]
    config = without(config, wrong)
    tokenizer, problems = model.check_model(config)
    critic_problems = list(found(model.check_critic, config))
    problems += [problem for problem in critic_problems if problem.where not in wrong_keys]
    report.problems += problems
    if not wrong:  # both read most keys
        has_models = tokenizer is not None and not critic_problems
        report.problems += check_verl(config, has_model=has_models)
        report.problems += found(check_memory, config, report)
    for check in (
        *(model.check_quantisation, nf4.check_nf4, check_bucket, settings.check_lengths),
        *(settings.check_log_probs, settings.check_llds, cluster.check_batch_sizes, cluster.check_engines),
        *(cluster.check_reachability, _check_resumed_rates, resume.check_run_folder, sampler.check_sampler),
        *(sampler.check_group_size, check_loggers, check_values, resume.check_resume_path),
    ):
        report.problems += found(check, config)
    for check in (
        *(sampler.check_filtering, sessions.check_sessions, probes.check_probes),
        settings.check_weights,
    ):
        report.problems += found(check, config, rag_r1_config)
    if rag_r1_config is not None and rag_r1_config.protocol is not None and tokenizer is not None:
        report.problems += model.check_tags(rag_r1_config.protocol, tokenizer)
        if unfit := list(found(model.check_turns, config, rag_r1_config, tokenizer)):
            report.problems += unfit
            tokenizer = None  # prompts cannot be made with it
    train_rows = data.check_data(config, rag_r1_config, tokenizer, report)
    if train_rows is not None:
        report.problems += found(data.check_steps, config, train_rows)


def _check_resumed_rates(config: DictConfig) -> Iterator[Problem]:
    """Check the learning rates of the trained roles, if the training resumes (resume.py)."""
    return resume.check_resumed_rates(config, critic=needs_critic(config))
