"""Runs without a network: engines that answer by a script, a searcher that finds one thing, a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rag_r1.agent import Budget, FailurePolicy, Generation
from rag_r1.agent.failures import FOR_TRAINING
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.rows import QuestionRow
from rag_r1.inference.character_codec import CharacterCodec
from rag_r1.protocols import load_protocol
from rag_r1.rewards import RewardSum
from rag_r1.rollouts.requests import EpisodeRequest
from rag_r1.rollouts.runner import EpisodeRunner
from rag_r1.runs.folder import RunFolder
from rag_r1.runs.response_cache import Usage
from rag_r1.tools import search_tools
from tests.fakes.scripted_engine import SEARCH, Searcher

SQ = load_protocol("rag_r1_sq")
RIGHT, WRONG, FAILS = "right", "wrong", "fails"
GOLD = "Rome"
#: For each question what becomes of each of its samples.
Script = Mapping[str, Sequence[str]]
#: Seconds before each turn, by ask and turn.
Pause = Callable[[EpisodeRequest, int], float]


class ScriptedEngine:
    """Searches once, then answers as the script says, or raises."""

    def __init__(self, ask: EpisodeRequest, fate: str, pause: Pause):
        self.ask, self.fate, self.pause, self.turn = ask, fate, pause, 0
        self.usage = Usage()

    async def generate(self, context, max_tokens, stop):
        await asyncio.sleep(self.pause(self.ask, self.turn))
        self.turn += 1
        if self.turn == 1:
            text = SEARCH
        elif self.fate == FAILS:
            raise ConnectionError("the endpoint is away")
        else:
            text = f"<answer> {GOLD if self.fate == RIGHT else 'Paris'} </answer>"
        return Generation([ord(character) for character in text])


def setup_of(searcher=None) -> AgentSetup:
    """The agent of these runs; its tokens are characters."""
    codec = CharacterCodec()
    return AgentSetup(
        protocol=SQ,
        codec=codec,
        budget=Budget(max_query_observation_tokens=4000, max_response_tokens=10_000),
        tools=lambda: search_tools(searcher or Searcher()),
        chat=codec.chat,
        failures=FailurePolicy(**{**FOR_TRAINING, "retries": 0}),
    )


def row_of(name: str) -> QuestionRow:
    """A row whose question is its id."""
    return QuestionRow(
        f"What is {name}?", (GOLD,), tuple(SQ.messages(f"What is {name}?")), id=name, protocol=SQ.name
    )


def runner_of(
    folder: RunFolder, script: Script, played: list[str], pause: Pause = lambda ask, turn: 0.0, **options
):
    """A runner that follows a script; `played` gets the id of each episode as it begins."""

    def make(ask: EpisodeRequest) -> ScriptedEngine:
        played.append(ask.id)
        return ScriptedEngine(ask, script[ask.question_id][ask.sample], pause)

    reward = RewardSum.from_config([{"term": "em"}, {"term": "f1", "weight": 0.0}])
    return EpisodeRunner(setup_of(), make, reward, folder, **{"in_flight": 4, **options})


def folder_at(path: Path, **settings) -> RunFolder:
    """A run's folder with some settings."""
    return RunFolder(path, {"model": "m", **settings})


def untimed(record: dict) -> dict:
    """A record without what differs from run to run."""
    turns = []
    for turn in record["turns"]:
        calls = [{**call, "seconds": 0, "cached": False} for call in turn["calls"]]
        turns.append({**turn, "generate_s": 0, "tool_s": 0, "calls": calls})
    return {**record, "seconds": 0, "turns": turns}
