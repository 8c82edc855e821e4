"""veRL's agent loop `search_agent`: the agent core behind veRL's interface.

veRL makes one SearchAgentLoop for each trajectory and awaits `run`. The loop turns the row into prompt
tokens, plays an `Episode` against veRL's own generation client, and hands back the ledger's row.
Trajectories share one retrieval client and one codec per process. The trajectory record travels to the
reward manager in `extra_fields`, and no further (`SearchOutput`).

Whatever goes wrong with one trajectory costs that trajectory and not the run, and the episode types it
(agent/loop.py): also a prompt or a tool that cannot be made, for both are made within it.
`rag_r1.failures.mask` says which failures are masked: their response mask is 0, and the sampler takes them
out of the batch (sampler.py).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any
from uuid import uuid4

from omegaconf import DictConfig, OmegaConf
from transformers import AutoConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from rag_r1.agent import Budget, Episode, Generation, Ledger, TokenizerCodec, Trajectory
from rag_r1.config import RagR1Config
from rag_r1.protocols import control_tokens
from rag_r1.tools import shared_searcher

#: Longer prompts are not even encoded: the longest tokens of common vocabularies are runs of 128 blanks.
_MOST_CHARS_A_TOKEN = 128


class VerlEngine:
    """veRL's generation client as the agent core's Engine, for one trajectory.

    One request id for all turns keeps them on the replica with the prefix cached. `extra_fields` holds the
    span of the weight versions that generated the trajectory, which veRL's asynchronous trainers need.

    In these a generation is aborted for a weight update and resumed by veRL's client
    (`FullyAsyncLLMServerClient`, llm_server.py), invisibly but for one thing: the resumed request looks for
    stop strings in its own text only. A closing tag that was cut in two is then passed over, and the policy
    writes on. `_until_stop` cuts there.
    """

    def __init__(self, client: Any, sampling_params: dict[str, Any], codec: TokenizerCodec):
        self.client, self.sampling_params, self.codec = client, sampling_params, codec
        self.resumes = isinstance(client, FullyAsyncLLMServerClient)
        self.request_id = uuid4().hex
        self.extra_fields: dict[str, Any] = {}
        self.preempted = 0

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Continue `context` until a stop string (kept), the end of sequence or `max_tokens`."""
        out = await self.client.generate(
            request_id=self.request_id,
            prompt_ids=context,
            sampling_params={
                **self.sampling_params,
                "max_tokens": max_tokens,
                "stop": list(stop),
                "include_stop_str_in_output": True,
            },
        )
        if out.token_ids:
            self._widen(out.extra_fields)
        self.preempted += out.num_preempted or 0
        ids, logprobs = out.token_ids, None
        if self.sampling_params.get("logprobs"):  # without them the row would fit no batch: none is too few
            logprobs = out.log_probs or []
        if self.resumes and (logprobs is None or len(logprobs) == len(ids)):
            ids = self._until_stop(ids, stop)
            logprobs = logprobs and logprobs[: len(ids)]
        aborted = out.stop_reason in ("aborted", "abort") or not ids
        return Generation(ids, logprobs, aborted, f"stop reason {out.stop_reason}" if aborted else "")

    def _widen(self, fields: dict[str, Any]) -> None:
        """Take a turn's fields; its weight versions widen the span of the trajectory."""
        spans = {name: self.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps")}
        self.extra_fields.update(fields)
        for (name, old), pick in zip(spans.items(), (min, max), strict=True):
            versions = [version for version in (old, fields.get(name)) if version is not None]
            self.extra_fields[name] = pick(versions, default=None)

    def _until_stop(self, ids: list[int], stop: Sequence[str]) -> list[int]:
        """The shortest beginning of `ids` whose text holds a stop string; all of them if there is none."""

        def stopped(n: int) -> bool:
            text = self.codec.decode(ids[:n])
            return any(string in text for string in stop)

        if not stopped(len(ids)):
            return ids
        return ids[: bisect_left(range(len(ids) + 1), True, key=stopped)]


class SearchOutput(AgentLoopOutput):
    """veRL's output, whose record of the trajectory ends with its reward.

    veRL's agent-loop worker sends `extra_fields` to the reward manager, which reads the record and writes it
    to disk, and then puts `as_dict()` into its store, from where the trainer fetches `extra_fields` in every
    step and every validation. Nothing reads the record there, and it is most of what they weigh: documents
    and texts of all turns. So it stays with the worker.
    """

    def as_dict(self) -> dict[str, Any]:
        """veRL's row of this output, without the record."""
        row = super().as_dict()
        row["extra_fields"].pop("trajectory", None)
        return row


class _Settings:
    """The checked configuration of a process; made once, since veRL makes a loop for each trajectory."""

    _made: tuple[DictConfig, _Settings] | None = None

    def __init__(self, config: DictConfig, tokenizer: Any):
        self.rag_r1 = RagR1Config.from_config(_plain(config.get("rag_r1")))
        self.protocol = self.rag_r1.protocol.with_special_tokens(control_tokens(tokenizer))
        self.codec = TokenizerCodec(tokenizer, vocabulary_size=_vocabulary_size(config))
        rollout = config.actor_rollout_ref.rollout
        self.budget, self.validation_budget = (
            self._within(rollout, self.rag_r1.budget(rollout.response_length, validation=validation))
            for validation in (False, True)
        )

    @staticmethod
    def _within(rollout: Any, budget: Budget) -> Budget:
        """The budget with what the engine's context can hold."""
        return replace(
            budget,
            max_prompt_tokens=rollout.prompt_length,
            # The engine refuses a prompt that its context cannot hold; no shorter one is refused before it.
            max_context_tokens=max(
                rollout.max_model_len or rollout.prompt_length + rollout.response_length,
                rollout.prompt_length + 1,
            ),
        )

    @classmethod
    def of(cls, config: DictConfig, tokenizer: Any) -> _Settings:
        if cls._made is None or cls._made[0] is not config:
            cls._made = (config, cls(config, tokenizer))
        return cls._made[1]


@register("search_agent")
class SearchAgentLoop(AgentLoopBase):
    """One trajectory of the search agent; see the module's paragraph."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.settings = _Settings.of(self.config, self.tokenizer)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Play one row of the data set; `row` holds its columns. Returns the training row and the record."""
        settings = self.settings
        info = row.get("extra_info")
        info = info if isinstance(info, Mapping) else {}
        question = _text(info.get("question"))
        record_id = f"{_text(info.get('id', row.get('uid')))}#{row.get('session_id', 0)}"
        codec = settings.codec
        engine = VerlEngine(self.server_manager, sampling_params, codec)
        training = str(info.get("split", "train")) == "train"
        ours = settings.rag_r1
        searcher = shared_searcher(ours.retriever if training else ours.validation_retriever)

        budget = settings.budget if training else settings.validation_budget
        episode = Episode(settings.protocol, budget, engine, searcher, codec, ours.failures)
        record = await episode.run(record_id, question, self._prompt_ids(row, question))
        return self._output(episode.ledger, record, engine, row)

    async def _prompt_ids(self, row: dict[str, Any], question: str) -> list[int]:
        own = self.settings.rag_r1.own_prompt
        protocol, codec = self.settings.protocol, self.settings.codec
        messages = protocol.messages(question) if own else list(row["raw_prompt"])
        most = _MOST_CHARS_A_TOKEN * self.config.actor_rollout_ref.rollout.prompt_length
        if sum(len(str(message["content"])) for message in messages) > most:
            raise ValueError(f"a prompt of more than {most} characters")
        messages = protocol.harmless(messages, question)
        # Not ct_build_initial_tokens, which cuts a long prompt on the left (_cap_text_prompt_length).
        chat = self.continuous_token_builder.build_initial_tokens
        arguments = (protocol.prompt_ids, messages, chat, codec.encode, codec.start)
        return list(await asyncio.get_running_loop().run_in_executor(None, *arguments))

    def _output(
        self, ledger: Ledger, record: Trajectory, engine: VerlEngine, row: dict[str, Any]
    ) -> AgentLoopOutput:
        # veRL's tensors need one token of each; masked, it trains nothing.
        if not ledger.response_ids:
            ledger.observed([self.tokenizer.eos_token_id])
        training = ledger.row()
        masked = record.masked(self.settings.rag_r1.failures.mask)
        # Not the zeros of a row without generations if the other rows of its batch have none.
        wanted = engine.sampling_params.get("logprobs")
        # veRL's trainer takes no row without versions (trainer_base.py, `_compute_metrics`). Where no engine
        # has told one, it is that of the step: the weights of step n are those that step n - 1 made.
        version = max(int(row.get("global_steps", 0)) - 1, 0)
        span = {name: engine.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps")}
        return SearchOutput(
            prompt_ids=training.prompt_ids or [self.tokenizer.eos_token_id],
            response_ids=training.response_ids,
            response_mask=[0] * len(training.response_mask) if masked else training.response_mask,
            response_logprobs=training.response_logprobs if wanted else None,
            # veRL counts messages: the user's, one for each generation, one for each observation.
            num_turns=1 + len(record.turns) + sum(turn.observed_tokens > 0 for turn in record.turns),
            metrics=AgentLoopMetrics(
                generate_sequences=sum(turn.generate_s for turn in record.turns),
                tool_calls=sum(turn.tool_s for turn in record.turns),
                num_preempted=engine.preempted,
            ),
            extra_fields={
                "turn_scores": [],
                "tool_rewards": [],
                **engine.extra_fields,
                **{name: version if known is None else known for name, known in span.items()},
                "trajectory": record.to_dict(),
            },
        )


def _vocabulary_size(config: DictConfig) -> int | None:
    """The number of ids that the model has; None where its configuration cannot be read here."""
    model = config.actor_rollout_ref.get("model") or {}
    if not model.get("path"):
        return None
    try:
        found = AutoConfig.from_pretrained(model.path, trust_remote_code=bool(model.get("trust_remote_code")))
        return int(found.get_text_config().vocab_size)
    except Exception:  # an address that only veRL can read, a model without a vocabulary: nothing is known
        return None


def _text(value: Any) -> str:
    """A cell of the data set as text; an empty or a nested one as none."""
    return str(value) if isinstance(value, str | Real) else ""


def _plain(config: Any) -> Any:
    return OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config
