"""Four things that a user adds, each in a single file outside of the packages: a protocol with a new block, a
tool with a schema, a reward for each turn, a retrieval back end."""

import asyncio
import sys

import pytest

from rag_r1.agent import Budget, Trajectory
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.protocols import Plan, load_protocol
from rag_r1.rewards import RewardSum
from rag_r1.tools import make_tool, search_tools
from retrieval_server.errors import UserError
from retrieval_server.indexing.builder import build_index
from retrieval_server.indexing.options import BuildOptions
from retrieval_server.search.index_source import IndexSource
from retrieval_server.search.options import OpenOptions
from tests.fakes.scripted_engine import Characters, Engine

PROTOCOL = """\
extends: rag_r1_sq
name: planning
blocks:
  plan: {tags: ["<plan>", "</plan>"], role: plan, stop: true}
  calculate: {tags: ["<calc>", "</calc>"], role: call, syntax: json}
"""

TOOL = """\
from rag_r1.tools import tool


@tool("Adds numbers.", {"numbers": {"type": "array", "items": {"type": "number"}}})
async def add(numbers):
    return f"{sum(numbers):g}"
"""


REWARD = """\
def short_turns(trajectory, golds, *, most_words: int = 5):
    return [float(len(turn.text.split()) <= most_words) for turn in trajectory.turns]
"""


BACKEND = """\
from retrieval_server.folder.manifest import PASSAGES
from retrieval_server.folder.passages import PassageStore
from retrieval_server.search.backends import Backend, Hit


class Substring(Backend):
    def __init__(self, texts):
        self.texts = texts

    def prepare(self, queries):
        return [query.lower() for query in queries]

    def find(self, prepared, topk):
        rows = [[row for row, text in enumerate(self.texts) if word in text] for word in prepared]
        return [[Hit(row, 1.0) for row in found[:topk]] for found in rows]


def open_index(folder, manifest):
    passages = PassageStore(folder / PASSAGES)
    return Substring([passages[row].contents.lower() for row in range(len(passages))])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("users_tool", "users_reward", "users_backend"):
        sys.modules.pop(name, None)


def play(protocol, tools, lines):
    class NoSearch:
        async def search(self, queries):
            return [[] for _ in queries]

    setup = AgentSetup(
        protocol=protocol,
        codec=Characters(),
        budget=Budget(max_query_observation_tokens=2000, max_response_tokens=5000),
        tools=lambda: {**search_tools(NoSearch()), **tools},
        chat=lambda messages: [1],
    )

    async def run() -> Trajectory:
        return await setup.episode(Engine(lines)).run("id", "What is 2 + 3?", setup.prompt_ids("2 + 3?"))

    return asyncio.run(run())


def test_a_protocol_with_a_new_block(folder):
    (folder / "planning.yaml").write_text(PROTOCOL)
    protocol = load_protocol(str(folder / "planning.yaml"))
    assert protocol.parse("<plan> add them </plan>") == Plan("add them")
    record = play(protocol, {}, ["<plan> add them </plan>", "<answer> 5 </answer>"])
    assert ([turn.action for turn in record.turns], record.answer) == (["plan", "answer"], "5")


def test_a_tool_with_a_schema(folder):
    (folder / "planning.yaml").write_text(PROTOCOL)
    (folder / "users_tool.py").write_text(TOOL)
    protocol = load_protocol(str(folder / "planning.yaml"))
    line = '<calc> {"name": "add", "arguments": {"numbers": [2, 3]}} </calc>'
    record = play(protocol, {"add": make_tool("add", "users_tool:add")}, [line, "<answer> 5 </answer>"])
    (call,) = record.turns[0].calls
    assert (call.tool, call.documents[0].contents, record.answer) == ("add", "5", "5")


def test_a_reward_for_each_turn(folder):
    (folder / "users_reward.py").write_text(REWARD)
    reward = RewardSum.from_config(
        [{"term": "em"}, {"term": "users_reward:short_turns", "weight": 0.5, "most_words": 3}]
    )
    lines = ["<search> who was born in Ulm </search>", "<answer> Rome </answer>"]
    judgement = asyncio.run(reward.judge(play(load_protocol("rag_r1_sq"), {}, lines), ["Rome"]))
    assert judgement.rewards == {"score": 1.5, "em": 1.0, "short_turns": 1.0, "missing_terms": 0.0}
    assert judgement.turn_scores == [0.0, 1.5]


def test_a_retrieval_back_end(folder):
    (folder / "users_backend.py").write_text(BACKEND)
    corpus, index = folder / "corpus.jsonl", folder / "index"
    corpus.write_text('{"id": "1", "contents": "Ulm\\nDanube"}\n{"id": "2", "contents": "Paris\\nSeine"}\n')
    build_index(BuildOptions(corpus=corpus, out=index, backend="bm25", progress=False))
    source = IndexSource.open(index, options=OpenOptions(backend="users_backend:open_index"))
    (results,) = source.search(["seine"], 3)
    assert [hit.passage.id for hit in results] == ["2"]
    with pytest.raises(UserError, match="--backend users_backend:nothing raises AttributeError"):
        IndexSource.open(index, options=OpenOptions(backend="users_backend:nothing"))
