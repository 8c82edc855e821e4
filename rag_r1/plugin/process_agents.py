"""The agents of a process for training, validation and probes.

veRL creates an agent loop for each trajectory. What the loops of a process share, such as the tools, the
codec and the passages of probes, is therefore made once, at the first call of `ProcessAgents.of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig
from transformers import AutoConfig

from rag_r1.config.agent_setup import AgentSetup, RowLimits
from rag_r1.config.schema import RagR1Config
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.rows import cell_text, golds_of
from rag_r1.options.problems import plain
from rag_r1.plugin.probe_rows import probe_of, split_of
from rag_r1.plugin.record_details import RecordDetails
from rag_r1.probes.passages import Passages, read_passages
from rag_r1.probes.probes import NEED_GOLD, NEED_PASSAGES, ProbeAgent, deeper_search, topk_of


class ProcessAgents:
    """The agents of a process, made from the composed configuration. Raises ValueError for wrong keys of the
    block `rag_r1:`, and DataError if the passages of a probe cannot be read."""

    _instance: tuple[DictConfig, ProcessAgents] | None = None

    def __init__(self, config: DictConfig, tokenizer: Any):
        settings = RagR1Config.from_config(plain(config.get("rag_r1")))
        settings.check_paths()
        rollout = config.actor_rollout_ref.rollout
        limits = RowLimits(rollout.prompt_length, rollout.response_length, rollout.max_model_len)
        n_ids = _vocabulary_size(config)
        template = plain(config.get("data", {}).get("apply_chat_template_kwargs"))
        #: The agents for rows of training and of validation.
        self.training = AgentSetup.of(settings, tokenizer, limits, vocabulary_size=n_ids, template=template)
        self.validation = self.training.for_validation(settings, limits)
        #: Completes the records of all trajectories.
        self.details = RecordDetails(settings.trajectory_dir, tokens=settings.trajectory_tokens)
        #: The names of the probes of a validation, and the agent that plays them.
        self.probes = settings.probes
        self.probe_agent = _probe_agent(settings, self.validation, limits)

    @classmethod
    def of(cls, config: DictConfig, tokenizer: Any) -> ProcessAgents:
        """Return the agents of this process for a configuration, which are made at the first call.

        veRL passes the same configuration and tokenizer to every loop. Only the former is compared: with
        another configuration, as in tests, new agents replace these.
        """
        if cls._instance is None or cls._instance[0] is not config:
            cls._instance = (config, cls(config, tokenizer))
        return cls._instance[1]

    def of_row(self, row: Mapping[str, Any], info: Mapping[str, Any]) -> AgentSetup:
        """Return the agent for a row whose `extra_info` is `info`: that of training, of validation, or of
        the row's probe. Raises ValueError if the row or `rag_r1.probe_passages` lacks passages that the probe
        needs."""
        if split_of(info) == "train":
            return self.training
        probe = probe_of(row)
        if probe not in self.probes:
            return self.validation
        evidence = GoldEvidence()
        if probe in NEED_PASSAGES:
            evidence = self.probe_agent.evidence(info, golds_of(row.get("reward_model")))
        return self.probe_agent.under(probe, cell_text(info.get("id")), evidence)


def _probe_agent(settings: RagR1Config, validation: AgentSetup, limits: RowLimits) -> ProbeAgent:
    """Return the agent of validation under the probes of the settings. The file of passages is read only if
    a probe needs it; raises DataError if that fails."""
    retriever = settings.validation_retriever
    topk = topk_of(retriever)
    deep_setup = validation
    passages = Passages()
    if any(probe in NEED_GOLD for probe in settings.probes):
        deep_settings = replace(settings, validation_retriever=deeper_search(retriever, topk))
        deep_setup = validation.for_validation(deep_settings, limits)
    if settings.probe_passages and any(probe in NEED_PASSAGES for probe in settings.probes):
        passages = read_passages(settings.probe_passages)
    return ProbeAgent(validation, deep_setup, topk, passages)


def _vocabulary_size(config: DictConfig) -> int | None:
    """Return the number of token ids that the model has; None if its configuration cannot be read here."""
    model = config.actor_rollout_ref.get("model") or {}
    if not model.get("path"):
        return None
    try:
        trusted = bool(model.get("trust_remote_code"))
        model_config = AutoConfig.from_pretrained(model.path, trust_remote_code=trusted)
        return int(model_config.get_text_config().vocab_size)
    except Exception:  # an address that only veRL can read, or a model without a vocabulary size
        return None
