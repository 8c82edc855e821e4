"""veRL's agent loop `search_agent`: runs the agent core behind veRL's interface.

veRL creates one SearchAgentLoop for each trajectory and awaits `run`. The loop turns the row into prompt
tokens, runs an `Episode` with veRL's own generation client, and returns the ledger's rows. The trajectories
of a process share their tools and one codec (rag_r1/config/agent_setup.py). The trajectory record is passed
to the reward manager in `extra_fields`, and no further (`SearchOutput`).

Whatever goes wrong with one trajectory affects that trajectory and not the run. The episode turns it into a
typed failure (rag_r1/agent/episode.py), even if a prompt or a tool cannot be made, since both are made within
the episode. `rag_r1.failures.mask` lists the kinds of failure that are masked: the response mask of such a
trajectory is 0, and the sampler removes it from the batch (sampler.py).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from omegaconf import DictConfig
from transformers import AutoConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from rag_r1.agent import Codec, Generation, Ledger, TrainingRow, Trajectory
from rag_r1.agent.tokens.signals import part_logprobs
from rag_r1.config.agent_setup import AgentSetup, RowLimits
from rag_r1.config.schema import RagR1Config
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.rows import cell_text, golds_of
from rag_r1.options.problems import plain
from rag_r1.plugin.algorithms.turn_loo import NAME as TURN_LOO
from rag_r1.plugin.algorithms.turn_loo import place_turn_scores
from rag_r1.plugin.probe_rows import probe_of
from rag_r1.plugin.record_details import RecordDetails
from rag_r1.probes.passages import Passages, read_passages
from rag_r1.probes.probes import NEED_GOLD, NEED_PASSAGES, ProbeAgent, deeper_search, topk_of


class VerlEngine:
    """veRL's generation client as the agent core's Engine, for one trajectory.

    One request id for all turns keeps them on the replica that has the prefix cached. `extra_fields` holds
    the range of weight versions that generated the trajectory, which veRL's asynchronous trainers need.

    Those trainers abort a generation for a weight update, and veRL's client (llm_server.py,
    `FullyAsyncLLMServerClient`) resumes it. This is invisible except for one thing: the resumed request looks
    for stop strings in its own text only. A closing tag that was split in two is then missed, and the policy
    continues to write. `_until_stop` cuts the output there.
    """

    def __init__(self, client: Any, sampling_params: dict[str, Any], codec: Codec):
        self.client, self.sampling_params, self.codec = client, sampling_params, codec
        self.resumes = isinstance(client, FullyAsyncLLMServerClient)
        self.request_id = uuid4().hex
        self.extra_fields: dict[str, Any] = {}
        self.preempted = 0

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Continues `context`, token ids, until a stop string (kept), the end of sequence or `max_tokens`."""
        output = await self.client.generate(
            request_id=self.request_id,
            prompt_ids=context,
            sampling_params={
                **self.sampling_params,
                "max_tokens": max_tokens,
                "stop": list(stop),
                "include_stop_str_in_output": True,
            },
        )
        if output.token_ids:
            self._add_fields(output.extra_fields)
        self.preempted += output.num_preempted or 0
        ids = output.token_ids
        logprobs = None
        if self.sampling_params.get("logprobs"):  # missing ones: the generation counts as failed
            logprobs = output.log_probs or []
        if self.resumes and (logprobs is None or len(logprobs) == len(ids)):
            ids = self._until_stop(ids, stop)
            logprobs = logprobs and logprobs[: len(ids)]
        aborted = output.stop_reason in ("aborted", "abort") or not ids
        return Generation(ids, logprobs, aborted, f"stop reason {output.stop_reason}" if aborted else "")

    def _add_fields(self, fields: dict[str, Any]) -> None:
        """Adds a turn's fields to `extra_fields`; its weight versions widen the range of the trajectory."""
        extremes = {}
        for name, extreme in (("min_global_steps", min), ("max_global_steps", max)):
            versions = [self.extra_fields.get(name), fields.get(name)]
            extremes[name] = extreme((version for version in versions if version is not None), default=None)
        self.extra_fields = {**self.extra_fields, **fields, **extremes}

    def _until_stop(self, ids: list[int], stop: Sequence[str]) -> list[int]:
        """The shortest beginning of `ids` whose text contains a stop string; all ids if there is none."""

        def has_stop_string(length: int) -> bool:
            text = self.codec.decode(ids[:length])
            return any(string in text for string in stop)

        if not has_stop_string(len(ids)):
            return ids
        return ids[: bisect_left(range(len(ids) + 1), True, key=has_stop_string)]


class SearchOutput(AgentLoopOutput):
    """veRL's output; the trajectory record in it is dropped once the reward is computed.

    veRL's agent-loop worker sends `extra_fields` to the reward manager, which reads the record and writes it
    to disk. The worker then puts `as_dict()` into veRL's store, from which the trainer fetches `extra_fields`
    in every step and every validation. Nothing there reads the record, which is most of their size: documents
    and texts of all turns. So it is left out.
    """

    def as_dict(self) -> dict[str, Any]:
        """Returns veRL's row of this output, without the record. If the turns' scores are there (estimator
        `turn_loo`), they are the rewards of the turns' last tokens, in place of the total on the last one."""
        row = super().as_dict()
        fields = row["extra_fields"]
        fields.pop("trajectory", None)
        info = dict(fields.get("reward_extra_info") or {})
        turn_scores = info.pop("turn_scores", None)
        turn_ends = fields.pop("turn_ends", None)
        row_number = fields.pop("row_number", 0)
        if turn_scores is not None:
            fields["reward_extra_info"] = info
        if turn_scores and turn_ends and len(turn_scores) == len(turn_ends):
            length = len(self.response_ids)
            row["rm_scores"] = place_turn_scores(
                row_number, length, turn_ends, turn_scores, self.reward_score
            )
        return row


class _ProcessAgent:
    """The agent of a process for training, validation and probes; made once, not for each loop of veRL."""

    _instance: tuple[DictConfig, _ProcessAgent] | None = None

    def __init__(self, config: DictConfig, tokenizer: Any):
        settings = RagR1Config.from_config(plain(config.get("rag_r1")))
        settings.check_paths()
        rollout = config.actor_rollout_ref.rollout
        limits = RowLimits(rollout.prompt_length, rollout.response_length, rollout.max_model_len)
        vocabulary = _vocabulary_size(config)
        template = plain(config.get("data", {}).get("apply_chat_template_kwargs"))
        self.training = AgentSetup.of(
            settings, tokenizer, limits, vocabulary_size=vocabulary, template=template
        )
        self.validation = self.training.for_validation(settings, limits)
        self.details = RecordDetails(settings.trajectory_dir, tokens=settings.trajectory_tokens)
        self.probes = settings.probes
        self.probe_agent = _probe_agent(settings, self.validation, limits)

    def of_row(self, row: Mapping[str, Any], info: Mapping[str, Any]) -> AgentSetup:
        """The agent for a row with this `extra_info`: of training, of validation, or of the row's probe."""
        if str(info.get("split", "train")) == "train":
            return self.training
        probe = probe_of(row)
        if probe not in self.probes:
            return self.validation
        evidence = GoldEvidence()
        if probe in NEED_PASSAGES:
            evidence = self.probe_agent.evidence(info, golds_of(row.get("reward_model")))
        return self.probe_agent.under(probe, cell_text(info.get("id")), evidence)

    @classmethod
    def of(cls, config: DictConfig, tokenizer: Any) -> _ProcessAgent:
        """The process's agent for this configuration, made at the first call."""
        if cls._instance is None or cls._instance[0] is not config:
            cls._instance = (config, cls(config, tokenizer))
        return cls._instance[1]


def _probe_agent(settings: RagR1Config, validation: AgentSetup, limits: RowLimits) -> ProbeAgent:
    """The agent of validation under the probes of the settings. The file of passages is read once in a
    process, and only if a probe needs it; raises DataError if that fails."""
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


@register("search_agent")
class SearchAgentLoop(AgentLoopBase):
    """Plays one trajectory of the search agent; made anew for each, with the agent of the process."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.agent = _ProcessAgent.of(self.config, self.tokenizer)

    async def run(
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Plays one row of the data set; `row` holds its columns. Returns the training row with the record
        or, if the context was rewritten, a list of rows with the record in the last."""
        info = row.get("extra_info")
        info = info if isinstance(info, Mapping) else {}
        question = cell_text(info.get("question"))
        record_id = f"{cell_text(info.get('id', row.get('uid')))}#{row.get('session_id', 0)}"
        setup = self.agent.of_row(row, info)
        engine = VerlEngine(self.server_manager, sampling_params, setup.codec)
        episode = setup.episode(engine)
        record = await episode.run(record_id, question, self._prompt_ids(setup, row, question))
        self.agent.details.add(record, episode.ledger, setup.protocol, setup.codec)
        spans = episode.ledger.spans()
        record.logprobs = part_logprobs(record.turns, spans, setup.protocol, setup.codec.decode)
        outputs = self._outputs(episode.ledger, record, engine, row, setup.failures.mask)
        return outputs[0] if len(outputs) == 1 else outputs

    async def _prompt_ids(self, setup: AgentSetup, row: dict[str, Any], question: str) -> list[int]:
        """The tokens of the prompt: of the protocol's own, or of the row's messages."""
        # Not ct_build_initial_tokens, which truncates a long prompt on the left (_cap_text_prompt_length).
        chat = self.continuous_token_builder.build_initial_tokens
        messages = None if setup.own_prompt else list(row["raw_prompt"])
        return await asyncio.to_thread(setup.prompt_ids, question, messages, chat)

    def _outputs(
        self,
        ledger: Ledger,
        record: Trajectory,
        engine: VerlEngine,
        row: dict[str, Any],
        mask: Collection[str],
    ) -> list[AgentLoopOutput]:
        """veRL's outputs, one for each training row. veRL scores the last and copies its score to the others;
        so the last has the record, and also the trajectory's metrics, which are then counted once."""
        # No log-probs, not even the zeros of a row without generations, if the rest of the batch has none.
        wants_logprobs = engine.sampling_params.get("logprobs")
        fields = {"turn_scores": [], "tool_rewards": [], **engine.extra_fields, **_versions(engine, row)}
        rows = [self._with_tokens(training) for training in ledger.rows()]
        last_number = len(rows) - 1
        by_turn = (self.config.get("algorithm") or {}).get("adv_estimator") == TURN_LOO
        if by_turn and ledger.generated_tokens:
            fields["turn_ends"] = ledger.turn_ends(len(record.turns))
        return [
            SearchOutput(
                prompt_ids=training.prompt_ids,
                response_ids=training.response_ids,
                response_mask=[0] * len(training.response_mask)
                if record.masked(mask)
                else training.response_mask,
                response_logprobs=training.response_logprobs if wants_logprobs else None,
                # veRL counts messages: the user's, one for each generation, one for each observation.
                num_turns=1 + len(record.turns) + sum(turn.observed_tokens > 0 for turn in record.turns),
                metrics=_metrics(record, engine) if i == last_number else AgentLoopMetrics(),
                extra_fields={
                    **fields,
                    **({"row_number": i} if by_turn else {}),
                    **({"trajectory": record.to_dict()} if i == last_number else {}),
                },
            )
            for i, training in enumerate(rows)
        ]

    def _with_tokens(self, row: TrainingRow) -> TrainingRow:
        """The row with at least one token of prompt and response, which veRL's tensors need; added tokens are
        masked, so they are not trained on."""
        eos = self.tokenizer.eos_token_id
        if not row.response_ids:
            row = TrainingRow(row.prompt_ids, [eos], [0], [0.0])
        return row if row.prompt_ids else replace(row, prompt_ids=[eos])


def _metrics(record: Trajectory, engine: VerlEngine) -> AgentLoopMetrics:
    """Seconds of generation and of tools in a trajectory, and how often it was preempted."""
    return AgentLoopMetrics(
        generate_sequences=sum(turn.generate_s for turn in record.turns),
        tool_calls=sum(turn.tool_s for turn in record.turns),
        num_preempted=engine.preempted,
    )


def _versions(engine: VerlEngine, row: dict[str, Any]) -> dict[str, int]:
    """The range of weight versions that played a trajectory, which veRL's trainer requires in every row
    (trainer_base.py, `_compute_metrics`). If no engine has reported one, it is that of the step: the weights
    of step n result from step n - 1."""
    step_version = max(int(row.get("global_steps", 0)) - 1, 0)
    reported = {name: engine.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps")}
    return {name: step_version if version is None else version for name, version in reported.items()}


def _vocabulary_size(config: DictConfig) -> int | None:
    """The number of ids that the model has; None if its configuration cannot be read here."""
    model = config.actor_rollout_ref.get("model") or {}
    if not model.get("path"):
        return None
    try:
        trusted = bool(model.get("trust_remote_code"))
        model_config = AutoConfig.from_pretrained(model.path, trust_remote_code=trusted)
        return int(model_config.get_text_config().vocab_size)
    except Exception:  # an address that only veRL can read, or a model without a vocabulary size
        return None
