"""Search-R1's v0.3 reward as a table of trajectories and values."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from rag_r1 import protocols
from rag_r1.agent import Budget, Episode, Trajectory, Turn
from rag_r1.protocols import Document, load_protocol
from rag_r1.rewards import RewardSum
from rag_r1.tools import search_tools
from tests.fakes.scripted_engine import Characters, Engine, Searcher

THINK = "<think> I wonder. </think>"
SEARCH = f"{THINK}\n<search> capital of France </search>"
PARIS, LYON = Document("1", '"France"\nIts capital is Paris.'), Document("2", '"Lyon"\nA city.')


def searched(text: str = SEARCH, documents=(LYON,)) -> Turn:
    return Turn.searched(text, ["capital of France"], [list(documents)])


def trajectory(*turns: Turn, protocol: str = "search_r1") -> Trajectory:
    """A record as the agent core leaves it: an answer only if the last turn parses as one."""
    action = load_protocol("search_r1").parse(turns[-1].text if turns else "")
    answer = action.text if action.kind == "answer" else None
    return Trajectory("t", "?", protocol, turns=list(turns), answer=answer)


def answered(text: str = f"{THINK} <answer> Paris </answer>") -> Turn:
    return Turn(text, "answer")


def score(record: Trajectory, golds="Paris", protocol=None, **options) -> float:
    reward = RewardSum.from_config([{"term": "search_r1_format", **options}], protocol)
    return reward(record, golds)["score"]


MADE_UP = "<think> <information>Paris</information> </think><search>q</search>"
HINTED = Turn("<think> no action </think>", "invalid", status="invalid")
VALID = trajectory(searched(), searched(), answered())
#: Right answers whose structure is not valid.
INVALID = {
    "no think before the answer": trajectory(searched(), answered("<answer>Paris</answer>")),
    "no think before the search": trajectory(searched("<search> q </search>"), answered()),
    "text between the blocks": trajectory(searched(f"{THINK} so <search> q </search>"), answered()),
    "text before": trajectory(answered(f"Well. {THINK}<answer>Paris</answer>")),
    "text after": trajectory(answered(f"{THINK}<answer>Paris</answer> done")),
    "two thinks": trajectory(answered(f"{THINK}{THINK}<answer>Paris</answer>")),
    "a tag inside the think": trajectory(answered("<think> <search> </think><answer>Paris</answer>")),
    "made-up information": trajectory(searched(MADE_UP), answered()),
    "an invalid turn on the way": trajectory(HINTED, answered()),
}
TABLE = [
    # name, trajectory, gold, value
    ("right, valid", VALID, "Paris", 1.0),
    ("right, valid, no search", trajectory(answered()), "Paris", 1.0),
    *((f"right, {name}", record, "Paris", 0.8) for name, record in INVALID.items()),
    ("wrong, valid", VALID, "Rome", 0.2),
    ("wrong, valid, gold found", trajectory(searched(documents=[LYON, PARIS]), answered()), "France", 0.2),
    ("empty answer, valid", trajectory(answered(f"{THINK}<answer></answer>")), "Paris", 0.2),
    ("wrong, invalid", trajectory(answered("<answer>Paris</answer>")), "Rome", 0.1),
    ("no answer, searches right", trajectory(searched(), searched()), "Paris", 0.0),
    ("no answer, answer tag left open", trajectory(Turn(f"{THINK}<answer> Paris", "invalid")), "Paris", 0.0),
    ("no turns", trajectory(), "Paris", 0.0),
]


@pytest.mark.parametrize(
    ("record", "gold", "value"), [case[1:] for case in TABLE], ids=[case[0] for case in TABLE]
)
def test_values_with_the_published_defaults(record, gold, value):
    assert score(record, gold) == pytest.approx(value)


WEIGHTS = {"structure": 0.3, "final": 0.05, "retrieval": 0.1}


@pytest.mark.parametrize(
    ("documents", "text", "gold", "value"),
    [
        ([LYON, PARIS], f"{THINK}<answer>Lyon</answer>", "Paris", 0.4),
        ([LYON, PARIS], f"{THINK}<answer>Lyon</answer>", "Pari", 0.3),  # a part of a word is not found
        ([LYON, PARIS], f"{THINK}<answer>Lyon</answer>", "The", 0.3),  # nor is a gold of articles only
        ([PARIS], "<answer>Paris</answer>", "Paris", 0.7),
        ([PARIS], "<answer>Lyon</answer>", "Paris", 0.05),
    ],
)
def test_the_weights_of_the_formula_are_options(documents, text, gold, value):
    record = trajectory(searched(documents=documents), answered(text))
    assert score(record, gold, **WEIGHTS) == pytest.approx(value)


def test_a_user_protocol_brings_its_own_tags(tmp_path):
    shipped = Path(protocols.__file__).with_name("search_r1.yaml")
    data = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    tags = {**data["tags"], "think": ["<plan>", "</plan>"]}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**data, "name": "own", "tags": tags}))
    protocol = load_protocol(str(tmp_path / "own.yaml"))
    planned = trajectory(answered("<plan> p </plan><answer>Paris</answer>"), protocol="own")
    assert score(planned, protocol=protocol) == 1.0
    assert score(trajectory(answered(), protocol="own"), protocol=protocol) == pytest.approx(0.8)


PROTOCOLS = ["search_r1", "rag_r1_sq", "rag_r1_mq"]
ALL_TERMS = [{"term": term} for term in ("em", "f1", "cover_em", "search_r1_format")]


EXAMPLE = Document("1", '"<answer>Paris</answer>"\n<think>x</think><answer>Paris</answer>')


async def play(name: str, prompt: list[int], *lines: str, **limits) -> Trajectory:
    """An episode in which these lines are written and every search finds the example."""
    budget = Budget.from_config(limits, max_response_tokens=20_000)
    tools = search_tools(Searcher([EXAMPLE]))
    episode = Episode(load_protocol(name), budget, Engine(lines), tools, Characters())
    return await episode.run("t", "?", prompt)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_neither_the_prompts_example_nor_an_answer_in_a_document_earns_anything(name):
    prompt = load_protocol(name).messages("?")[0]["content"]
    assert "<answer> Beijing </answer>" in prompt
    lines = ("<think>a</think><search>q</search>", "<think>b</think>")
    record = asyncio.run(play(name, Characters().encode(prompt), *lines, max_turns=1))
    assert record.turns[0].documents, "the document was shown"
    for gold in ("Beijing", "Paris"):
        assert set(RewardSum.from_config(ALL_TERMS)(record, gold).values()) == {0.0}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_played_episode_is_valid_and_right(name):
    lines = ("<think>a</think>\n<search> q </search>", "\n<think>b</think><answer> Paris </answer>")
    record = asyncio.run(play(name, [1], *lines))
    reward = RewardSum.from_config(ALL_TERMS)
    assert reward(record, "Paris")["search_r1_format"] == 1.0
    assert reward(Trajectory.from_dict(record.to_dict()), "Paris") == reward(record, "Paris")
