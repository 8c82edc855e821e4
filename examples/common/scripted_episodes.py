"""Scripts that play the policy's part in real episodes, and the training rows of such episodes.

A script is the agent core's Engine (`rag_r1.agent.Episode`): it writes the text of each turn from what the
context holds. The training rows are those of the episode's ledger, so supervised training, rollout and
reinforcement learning have the same contexts, token by token.
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

_NOTHING = ({"id": "0", "contents": "nothing"},)


class Script(ABC):
    """The policy's part in one episode."""

    codec: Codec

    @abstractmethod
    def turn(self, context: str) -> str:
        """The text of the next turn, after what the context holds."""

    async def generate(self, context: list[int], max_tokens: int, stop: Sequence[str]) -> Generation:
        """The tokens of the next turn, cut to `max_tokens` as an engine does it."""
        return Generation(self.codec.encode(self.turn(self.codec.decode(context)))[:max_tokens])


def play(
    setup: AgentSetup, questions: Iterable[Question], script: Callable[[Question], Script]
) -> list[tuple[Trajectory, Ledger]]:
    """Play an episode for each question; returns its trajectory and its ledger of tokens."""

    async def play_all() -> list[tuple[Trajectory, Ledger]]:
        episodes = []
        for question in questions:  # one after the other, since their scripts draw from one generator
            episode = setup.episode(script(question))
            trajectory = await episode.run(question.id, question.text, setup.prompt_ids(question.text))
            episodes.append((trajectory, episode.ledger))
        return episodes

    return asyncio.run(play_all())


def play_rows(
    setup: AgentSetup, questions: Iterable[Question], script: Callable[[Question], Script]
) -> list[TrainingRow]:
    """Play an episode for each question; returns the training rows of all."""
    return [row for _, ledger in play(setup, questions, script) for row in ledger.rows()]


def recipe_budget(recipe: Path) -> Budget:
    """The limits of an episode in the file of a recipe."""
    settings = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    data, context_tokens = settings["data"], settings["actor_rollout_ref"]["rollout"]["max_model_len"]
    limits = RowLimits(data["max_prompt_length"], data["max_response_length"], context_tokens)
    return limits.within(Budget.from_config(settings["rag_r1"]["agent"], limits.response_tokens))


def script_setup(tokenizer: PreTrainedTokenizerBase, protocol: Protocol, budget: Budget) -> AgentSetup:
    """The demo's agent, with a search that finds nothing: the caller replaces its tools."""
    return demo_setup(tokenizer, protocol, budget, WorldSearch(_NOTHING, topk=1))
