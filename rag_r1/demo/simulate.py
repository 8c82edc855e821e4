"""Rolls out a policy in plain torch, without a server, Ray or vLLM.

It is used in tests, in the evaluation of the pipeline, and to measure a new warm start. The turn loop is the
real one (`rag_r1.agent.Episode`); only the engine is simpler. It waits until all running episodes have
requested a turn, and then generates these turns in one batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from transformers import DynamicCache, Qwen2ForCausalLM
from transformers import PreTrainedTokenizerBase as TokenizerBase

from rag_r1.agent import Budget, Generation, Ledger, TrainingRow, Trajectory
from rag_r1.demo.policy import demo_setup
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import Question
from rag_r1.protocols import Protocol

#: The limits of a rollout by default. Those of its turns are the ones of recipes/demo/_common.yaml.
BUDGET = Budget(max_turns=3, max_turn_tokens=48, max_response_tokens=512)


@dataclass(frozen=True)
class Rollout:
    """A trajectory, its tokens, and the question that it answers."""

    question: Question
    trajectory: Trajectory
    ledger: Ledger

    @property
    def row(self) -> TrainingRow:
        """The training row of the rollout. Raises ValueError if the ledger has several."""
        return self.ledger.row()

    @property
    def correct(self) -> bool:
        """Whether the answer is right. Names of the world need no normalisation before they are compared."""
        return self.trajectory.answer == self.question.gold


class WaitingTurn(NamedTuple):
    """A turn that an episode has requested."""

    context: list[int]
    max_tokens: int
    #: Receives the token ids of the turn, and their log probabilities.
    future: asyncio.Future[tuple[list[int], list[float]]]


@dataclass
class TorchEngine:
    """Generates the turns of all waiting episodes in one batch."""

    model: Qwen2ForCausalLM
    tokenizer: TokenizerBase
    #: 0 means greedy decoding. Log probabilities are always those at temperature 1.
    temperature: float
    #: The turns that the next `flush` generates.
    waiting: list[WaitingTurn] = field(default_factory=list)
    #: The token ids of each form in which a stop string may occur; all episodes have the same stop strings.
    stops: tuple[tuple[int, ...], ...] = ()

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Queue a turn, wait until `flush` has generated it, and return it.

        A stop string must be tokenized in the same way in every text, which is true of the demo's tags. Only
        a blank before it or a line break after it may be parts of its tokens.
        """
        forms = [prefix + string + suffix for string in stop for prefix in ("", " ") for suffix in ("", "\n")]
        self.stops = tuple(tuple(self.tokenizer(form, add_special_tokens=False).input_ids) for form in forms)
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(WaitingTurn(context, max_tokens, future))
        ids, logprobs = await future
        return Generation(ids, logprobs)

    @torch.no_grad()
    def flush(self) -> None:
        """Generate a turn for every waiting episode."""
        waiting, self.waiting = self.waiting, []
        tokens, mask = _left_padded([turn.context for turn in waiting], self.tokenizer.pad_token_id)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        live = torch.ones(len(waiting), dtype=torch.bool)
        limits = torch.tensor([turn.max_tokens for turn in waiting])
        cache = DynamicCache()
        token_columns: list[torch.Tensor] = []
        logprob_columns: list[torch.Tensor] = []
        lengths = torch.zeros(len(waiting), dtype=torch.long)
        while live.any():
            out = self.model(
                tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
            )
            logprobs = out.logits[:, -1].float().log_softmax(-1)
            if self.temperature == 0:
                tokens = logprobs.argmax(-1, keepdim=True)
            else:
                tokens = torch.multinomial((logprobs / self.temperature).softmax(-1), 1)
            token_columns.append(tokens[:, 0])
            logprob_columns.append(logprobs.gather(1, tokens)[:, 0])
            lengths += live
            live &= ~self._end_with_stop(token_columns) & (lengths < limits)
            positions = positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones(len(waiting), 1, dtype=mask.dtype)], 1)
        rows = torch.stack(token_columns, 1).tolist()
        logprobs = torch.stack(logprob_columns, 1).tolist()
        for turn, row, values, length in zip(waiting, rows, logprobs, lengths.tolist(), strict=True):
            turn.future.set_result((row[:length], values[:length]))

    def _end_with_stop(self, columns: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return whether each row ends with a stop string, a tensor of the shape (rows,).

        `columns` has the tokens so far: for each step, a tensor with the token of each row.
        """
        has_ended = torch.zeros_like(columns[-1], dtype=torch.bool)
        for stop in self.stops:
            if len(stop) <= len(columns):
                last_tokens = torch.stack(list(columns[-len(stop) :]), 1)
                has_ended |= (last_tokens == torch.tensor(stop)).all(1)
        return has_ended


def _left_padded(contexts: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad contexts on the left to the same length with the token `pad_id`. Returns the token ids, and a
    mask that is 0 at padding, both of the shape (contexts, length)."""
    length = max(map(len, contexts))
    ids = [[pad_id] * (length - len(context)) + list(context) for context in contexts]
    mask = [[0] * (length - len(context)) + [1] * len(context) for context in contexts]
    return torch.tensor(ids), torch.tensor(mask)


def run_rollouts(
    model: Qwen2ForCausalLM,
    tokenizer: TokenizerBase,
    protocol: Protocol,
    questions: Sequence[Question],
    search: WorldSearch,
    temperature: float = 0.0,
    budget: Budget = BUDGET,
) -> list[Rollout]:
    """Play each question once, and return the rollouts in the order of the questions."""
    engine = TorchEngine(model, tokenizer, temperature)
    setup = demo_setup(tokenizer, protocol, budget, search)
    episodes = []

    async def play() -> list[Trajectory]:
        episodes.extend(setup.episode(engine) for _ in questions)
        tasks = [
            asyncio.ensure_future(episode.run(question.id, question.text, setup.prompt_ids(question.text)))
            for episode, question in zip(episodes, questions, strict=True)
        ]
        while not all(task.done() for task in tasks):
            while sum(not task.done() for task in tasks) > len(engine.waiting):
                await asyncio.sleep(0)
            if engine.waiting:
                engine.flush()
        return [task.result() for task in tasks]

    trajectories = asyncio.run(play())
    return [
        Rollout(question, trajectory, episode.ledger)
        for question, trajectory, episode in zip(questions, trajectories, episodes, strict=True)
    ]


def scores_by_kind(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the share of right answers for each kind of question, and for `all`."""
    groups: dict[str, list[bool]] = {}
    for rollout in rollouts:
        for key in (rollout.question.kind, "all"):
            groups.setdefault(key, []).append(rollout.correct)
    return {kind: sum(values) / len(values) for kind, values in sorted(groups.items())}
