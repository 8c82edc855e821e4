"""Plays real episodes with scripts in place of the policy, and returns their training rows.

A script is an engine of the agent core (`rag_r1.agent.Episode`): it writes the text of each turn, depending
on the context. The training rows come from the episode's ledger, so supervised training, rollouts and
reinforcement learning see the same contexts, token by token.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import yaml
from transformers import PreTrainedTokenizerBase

from rag_r1.agent import Budget, Codec, Generation, Ledger, TrainingRow, Trajectory
from rag_r1.config.agent_setup import AgentSetup, RowLimits
from rag_r1.demo.policy import demo_setup
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import Question
from rag_r1.protocols import Protocol

#: The passages of the placeholder search.
_NOTHING = ({"id": "0", "contents": "nothing"},)


class Script(ABC):
    """Writes the policy's turns in one episode."""

    #: The codec of the episode.
    codec: Codec

    @abstractmethod
    def turn(self, context: str) -> str:
        """Return the text of the next turn after this context."""

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """Return the tokens of the next turn, cut to `max_tokens` as an engine would. `stop` is ignored,
        since `turn` returns a single turn."""
        return Generation(self.codec.encode(self.turn(self.codec.decode(context)))[:max_tokens])


def play(
    setup: AgentSetup, questions: Iterable[Question], script: Callable[[Question], Script]
) -> list[tuple[Trajectory, Ledger]]:
    """Play an episode for each question; returns the trajectory and the token ledger of each."""

    async def play_all() -> list[tuple[Trajectory, Ledger]]:
        episodes = []
        for question in questions:  # in sequence, since the scripts share one random generator
            episode = setup.episode(script(question))
            trajectory = await episode.run(question.id, question.text, setup.prompt_ids(question.text))
            episodes.append((trajectory, episode.ledger))
        return episodes

    return asyncio.run(play_all())


def play_rows(
    setup: AgentSetup, questions: Iterable[Question], script: Callable[[Question], Script]
) -> list[TrainingRow]:
    """Play an episode for each question; returns the training rows of all episodes."""
    return [row for _, ledger in play(setup, questions, script) for row in ledger.rows()]


def recipe_budget(recipe: Path) -> Budget:
    """Return the limits of an episode in a recipe's file."""
    settings = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    data, context_tokens = settings["data"], settings["actor_rollout_ref"]["rollout"]["max_model_len"]
    limits = RowLimits(data["max_prompt_length"], data["max_response_length"], context_tokens)
    return limits.within(Budget.from_config(settings["rag_r1"]["agent"], limits.response_tokens))


def script_setup(tokenizer: PreTrainedTokenizerBase, protocol: Protocol, budget: Budget) -> AgentSetup:
    """Return the demo's agent with a placeholder search; the caller replaces its tools."""
    return demo_setup(tokenizer, protocol, budget, WorldSearch(_NOTHING, topk=1))
