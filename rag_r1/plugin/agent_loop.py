"""veRL's agent loop `search_agent`: runs the agent core behind veRL's interface.

veRL creates one SearchAgentLoop for each trajectory and awaits `run`. The loop converts the row to prompt
tokens, runs an `Episode` with veRL's own generation client, and returns the ledger's rows. All loops of a
process share their tools and their codec (process_agents.py). The trajectory record is passed to the reward
manager in `extra_fields`, and no further (`SearchOutput`).

An error in an episode affects its trajectory only, and not the run. The episode turns it into a typed failure
(rag_r1/agent/episode.py), even if a prompt or a tool cannot be made, since both are made within the episode.
What a row says of its protocol and tools is read before; the preflight checks that. Failures of the kinds in
`rag_r1.failures.mask` are masked: the response mask of such a trajectory is 0, and the sampler removes it
from the batch (sampler.py).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from rag_r1.agent import Codec, Generation, Ledger, TrainingRow, Trajectory
from rag_r1.agent.tokens.signals import part_logprobs
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.rows import cell_text
from rag_r1.inference.episode_client import turn_seed
from rag_r1.plugin.algorithms.turn_loo import place_turn_scores, uses_turn_loo
from rag_r1.plugin.process_agents import ProcessAgents


class VerlEngine:
    """veRL's generation client as the agent core's Engine, for one trajectory.

    All turns have the same request id, so they go to the replica that has their prefix cached.

    veRL's asynchronous trainers abort generations for a weight update, and veRL's client resumes them
    (llm_server.py, `FullyAsyncLLMServerClient`). A resumed request looks for stop strings only in the text
    that it generates itself. So it misses a closing tag that the abort has split in two, and the policy
    continues to write. `_until_stop` cuts the output after that tag.

    `seed` is the trajectory's, from which that of each turn is derived; None samples without seeds.
    """

    def __init__(self, client: Any, sampling_params: dict[str, Any], codec: Codec, seed: str | None = None):
        self.client, self.sampling_params, self.codec = client, sampling_params, codec
        self.seed = seed
        #: Whether the client resumes aborted generations.
        self.resumes = isinstance(client, FullyAsyncLLMServerClient)
        self.request_id = uuid4().hex
        #: veRL's fields of the last turn, and the range of weight versions that generated the trajectory.
        self.extra_fields: dict[str, Any] = {}
        #: How often the trajectory was preempted.
        self.preempted = 0

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Continue `context`, which are token ids, up to and including a stop string, to the end of the
        sequence, or to `max_tokens`. The result is `aborted` if the client has stopped early or returned no
        token."""
        seed = {} if self.seed is None else {"seed": turn_seed(self.seed, len(context))}
        output = await self.client.generate(
            request_id=self.request_id,
            prompt_ids=context,
            sampling_params={
                **self.sampling_params,
                **seed,
                "max_tokens": max_tokens,
                "stop": list(stop),
                "include_stop_str_in_output": True,
            },
        )
        if output.token_ids:
            self._add_fields(output.extra_fields)
        self.preempted += output.num_preempted or 0
        ids = output.token_ids
        # If log-probs are requested and missing, the generation counts as failed.
        logprobs = (output.log_probs or []) if self.sampling_params.get("logprobs") else None
        if self.resumes and (logprobs is None or len(logprobs) == len(ids)):
            ids = self._until_stop(ids, stop)
            logprobs = logprobs and logprobs[: len(ids)]
        aborted = output.stop_reason in ("aborted", "abort") or not ids
        return Generation(ids, logprobs, aborted, f"stop reason {output.stop_reason}" if aborted else "")

    def _add_fields(self, fields: dict[str, Any]) -> None:
        """Add a turn's fields to `extra_fields`, and widen the range of weight versions by the turn's."""
        extremes = {}
        for name, extreme in (("min_global_steps", min), ("max_global_steps", max)):
            versions = [self.extra_fields.get(name), fields.get(name)]
            extremes[name] = extreme((version for version in versions if version is not None), default=None)
        self.extra_fields = {**self.extra_fields, **fields, **extremes}

    def _until_stop(self, ids: list[int], stop: Sequence[str]) -> list[int]:
        """Return the shortest prefix of `ids` whose text contains a stop string, or all ids if none does."""

        def has_stop_string(length: int) -> bool:
            text = self.codec.decode(ids[:length])
            return any(string in text for string in stop)

        if not has_stop_string(len(ids)):
            return ids
        return ids[: bisect_left(range(len(ids) + 1), True, key=has_stop_string)]


class SearchOutput(AgentLoopOutput):
    """veRL's output of one training row, without the trajectory record once the reward is computed.

    veRL's agent-loop worker sends `extra_fields` to the reward manager, which reads the record and writes it
    to disk. The worker then puts `as_dict()` into veRL's store, from which the trainer fetches `extra_fields`
    in every step and every validation. Nothing reads the record there, and with the documents and texts of
    all turns it is most of the data. So `as_dict` leaves it out.
    """

    def as_dict(self) -> dict[str, Any]:
        """Return the row for veRL's store, without the record.

        With the estimator `turn_loo`, each turn's last token gets that turn's score as its reward. Otherwise
        the last token of the row has the total, as veRL puts it.
        """
        row = super().as_dict()
        fields = row["extra_fields"]
        fields.pop("trajectory", None)
        reward_info = dict(fields.get("reward_extra_info") or {})
        turn_scores = reward_info.pop("turn_scores", None)
        turn_ends = fields.pop("turn_ends", None)
        row_number = fields.pop("row_number", 0)
        if turn_scores is not None:
            fields["reward_extra_info"] = reward_info
        if turn_scores and turn_ends and len(turn_scores) == len(turn_ends):
            row["rm_scores"] = place_turn_scores(
                row_number, len(self.response_ids), turn_ends, turn_scores, self.reward_score
            )
        return row


@register("search_agent")
class SearchAgentLoop(AgentLoopBase):
    """Plays one trajectory of the search agent. veRL creates an instance for each trajectory."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.agents = ProcessAgents.of(self.config, self.tokenizer)

    async def run(
        self, sampling_params: dict[str, Any], **row: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play one row of the data set, whose columns are in `row`.

        Returns the training row with the trajectory record or, if the context was rewritten, a list of
        training rows with the record in the last one.
        """
        info = row.get("extra_info")
        info = info if isinstance(info, Mapping) else {}
        question = cell_text(info.get("question"))
        # An id of null, as in a column of parquet, counts as missing.
        record_id = f"{cell_text(info.get('id')) or cell_text(row.get('uid'))}#{row.get('session_id', 0)}"
        setup = self.agents.of_row(row, info)
        seed = _trajectory_seed(self.config, row, record_id)
        engine = VerlEngine(self.server_manager, sampling_params, setup.codec, seed)
        episode = setup.episode(engine)
        record = await episode.run(record_id, question, self._prompt_ids(setup, row, question))
        self.agents.details.add(record, episode.ledger, setup.protocol, setup.codec)
        spans = episode.ledger.spans()
        record.logprobs = part_logprobs(record.turns, spans, setup.protocol, setup.codec.decode)
        outputs = self._outputs(episode.ledger, record, engine, row, setup.failures.mask)
        return outputs[0] if len(outputs) == 1 else outputs

    async def _prompt_ids(self, setup: AgentSetup, row: dict[str, Any], question: str) -> list[int]:
        """Return the tokens of the prompt, which is the protocol's or consists of the row's messages."""
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
        """Return veRL's outputs, one for each training row.

        veRL scores the last row and copies its score to the others. So the last row has the record, and also
        the trajectory's metrics, which are thereby counted once.
        """
        fields = {"turn_scores": [], "tool_rewards": [], **engine.extra_fields, **_versions(engine, row)}
        by_turn = uses_turn_loo(self.config)
        if by_turn and ledger.generated_tokens:
            fields["turn_ends"] = ledger.turn_ends(len(record.turns))
        # veRL counts messages: the user's, one for each generation, one for each observation.
        n_messages = 1 + len(record.turns) + sum(turn.observed_tokens > 0 for turn in record.turns)
        # No log-probs, not even the zeros of a row without generations, if the rest of the batch has none.
        wants_logprobs = engine.sampling_params.get("logprobs")
        is_masked = record.masked(mask)
        outputs = []
        for index, training_row in enumerate(map(self._with_tokens, ledger.rows())):
            row_mask = training_row.response_mask
            output = SearchOutput(
                prompt_ids=training_row.prompt_ids,
                response_ids=training_row.response_ids,
                response_mask=[0] * len(row_mask) if is_masked else row_mask,
                response_logprobs=training_row.response_logprobs if wants_logprobs else None,
                num_turns=n_messages,
                metrics=AgentLoopMetrics(),
                extra_fields={**fields, "row_number": index} if by_turn else dict(fields),
            )
            outputs.append(output)
        outputs[-1].metrics = _metrics(record, engine)
        outputs[-1].extra_fields["trajectory"] = record.to_dict()
        return outputs

    def _with_tokens(self, row: TrainingRow) -> TrainingRow:
        """Return the row with at least one token of prompt and of response, which veRL's tensors need. An
        added token of the response is masked, so it is not trained on."""
        eos = self.tokenizer.eos_token_id
        if not row.response_ids:
            row = TrainingRow(row.prompt_ids, [eos], [0], [0.0])
        return row if row.prompt_ids else replace(row, prompt_ids=[eos])


def _trajectory_seed(config: Any, row: Mapping[str, Any], record_id: str) -> str | None:
    """Return the seed of a trajectory if the rollout is to be repeatable (`full_determinism`), else None.

    veRL then gives all requests of a replica the same seed (vllm_async_server.py, `generate`), with which the
    trajectories of a group are copies of one and their advantages 0. It keeps a seed that the request has.
    """
    rollout = config.actor_rollout_ref.rollout
    if not rollout.get("full_determinism"):
        return None
    return f"{rollout.get('seed')}/{row.get('global_steps')}/{record_id}"


def _metrics(record: Trajectory, engine: VerlEngine) -> AgentLoopMetrics:
    """Return the seconds of generation and of tools in a trajectory, and how often it was preempted."""
    return AgentLoopMetrics(
        generate_sequences=sum(turn.generate_s for turn in record.turns),
        tool_calls=sum(turn.tool_s for turn in record.turns),
        num_preempted=engine.preempted,
    )


def _versions(engine: VerlEngine, row: dict[str, Any]) -> dict[str, int]:
    """Return the range of weight versions that generated a trajectory, which veRL's trainer requires in
    every row (trainer_base.py, `_compute_metrics`). If the engine has reported none, the version is that of
    the step: step n uses the weights that result from step n - 1."""
    step_version = max(int(row.get("global_steps", 0)) - 1, 0)
    reported = {name: engine.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps")}
    return {name: step_version if version is None else version for name, version in reported.items()}
