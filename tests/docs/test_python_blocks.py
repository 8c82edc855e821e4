"""Every Python block of a page runs, or carries a mark that says what it needs (tests/docs/fences.py).

A block runs in the names that its page speaks of (`names_of`), beside the modules that the page shows. The
servers at the addresses of a block are replaced by scripted ones.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rag_r1 import RewardSum, Trajectory
from rag_r1.agent import Turn
from rag_r1.protocols import Document
from rag_r1.tools.config import make_tool
from rag_r1.tools.registry import make_searcher
from tests.docs.fences import Fence, blocks, write_files
from tests.docs.page_inputs import runs
from tests.serving.running_chat import policy_of, policy_path

#: The settings of the pages' agent that depend on a machine, and the answers of the scripted one.
SETTINGS = 'model="Qwen/Qwen2.5-7B-Instruct", base_url="http://127.0.0.1:8001/v1"'
QUESTIONS = (
    "Which river flows through the town where Mara Torval was born?",
    "Who founded Ulm?",
    "Who wrote Emma?",
)
GUIDES = ("docs/guides/extending.md", "docs/guides/tools.md")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """The working directory, from which modules are imported; they are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


def names_of(page: str, folder: Path) -> dict[str, Any]:
    """What the blocks of a page find in place."""
    if page == "docs/rollouts.md":
        runs(folder / "outputs" / "mq-1" / "trajectories", {"train": {}})
    if page != "docs/rewards.md":
        return {}
    turns = [Turn.searched("ab", ["q"], [[Document("1", "The Danube.")]]), Turn("cd", "answer")]
    reward = RewardSum.from_config([{"term": "em"}, {"term": "my_rewards:first_evidence", "weight": 0.2}])
    return {
        "RewardSum": RewardSum,
        "reward": reward,
        "trajectory": Trajectory("t", "Which river?", "rag_r1_mq", turns, "Danube"),
        "golds": ["Danube"],
        "offsets": [[(0, 1), (1, 2)]] * 2,
    }


def run(text: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block, which may await at its top; returns its names."""
    code = compile(text, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)  # the text is this repository's own
    if inspect.iscoroutine(result):
        asyncio.run(result)
    return names


AGENTS = [block for block in blocks("python", needs=False) if "SearchAgent" in block.text]
OTHERS = [block for block in blocks("python", needs=False) if block not in AGENTS]


@pytest.mark.parametrize("block", OTHERS, ids=str)
def test_every_python_block_runs(block: Fence, modules: Path):
    write_files(block.page, modules)
    run(block.text, names_of(block.page, modules))


@pytest.mark.slow  # loads a tokenizer
@pytest.mark.parametrize("block", AGENTS, ids=str)
def test_the_agent_of_a_page_answers(block: Fence, tmp_path: Path):
    with policy_of(dict.fromkeys(QUESTIONS, "Danube")) as policy:
        servers = {"base_url": f"{policy.url}/v1", "retriever_url": policy.url, "out": str(tmp_path)}
        settings = {"model": "policy", "tokenizer": str(policy_path("rag_r1_mq")), **servers}
        assert SETTINGS in block.text
        names = run(block.text.replace(SETTINGS, f"**{settings}"), {})
    assert names["trajectory"].answer == "Danube"


async def test_the_reward_and_the_search_of_the_guide_to_extending_work(modules: Path):
    write_files("docs/guides/extending.md", modules)
    entries = [{"term": "em", "weight": 1.0}, {"term": "my_rewards:brevity", "weight": 0.1, "limit": 2}]
    turns = [Turn.searched("", ["q"], [[]]) for _ in range(3)]
    reward = RewardSum.from_config(entries)
    short, long = (Trajectory("t", "?", "rag_r1_mq", turns[:count], "Ulm") for count in (2, 3))
    assert reward(short, ["Ulm"])["score"] == pytest.approx(1.1) and reward(long, ["Ulm"])["score"] == 1.0
    options = {"tool": "my_tool:Glossary", "entries": {"veRL": "trainer"}}
    assert await make_searcher(options).search(["veRL", "x"]) == [[Document("veRL", "trainer")], []]


async def test_the_tools_of_the_guides_answer(modules: Path):
    for page in GUIDES:
        write_files(page, modules)
    (entries,) = [
        yaml.safe_load(block.text)["rag_r1"]["tools"] for block in blocks("yaml") if "my_tools:" in block.text
    ]
    entries["add"] = "my_tools:add"
    calls = {"letters": {"word": "Ulm"}, "weather": {"town": "Ulm"}, "add": {"numbers": [2, 3]}}
    results = [await make_tool(name, entries[name]).call([arguments]) for name, arguments in calls.items()]
    assert [document.contents for ((document,),) in results] == ["3", "rain in Ulm", "5"]
