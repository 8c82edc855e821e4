"""Search-R1's v0.3 reward as a table of trajectories and values."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from rag_r1.agent import Budget, Episode, Generation, Trajectory, Turn
from rag_r1.protocols import Document, load_protocol
from rag_r1.rewards import RewardSum
from rag_r1.tools import search_tools

THINK = "<think> I wonder. </think>"
SEARCH = f"{THINK}\n<search> capital of France </search>"
PARIS, LYON = Document("1", '"France"\nIts capital is Paris.'), Document("2", '"Lyon"\nA city.')


def searched(text: str = SEARCH, documents=(LYON,)) -> Turn:
    return Turn.searched(text, ["capital of France"], [list(documents)])


def trajectory(*turns: Turn, protocol: str = "search_r1") -> Trajectory:
    """A record as the agent core leaves it: an answer only if the last turn parses as one."""
    action = (
        load_protocol(protocol if protocol != "own" else "search_r1").parse(turns[-1].text) if turns else None
    )
    answer = action.text if action is not None and action.kind == "answer" else None
    return Trajectory("t", "?", protocol, turns=list(turns), answer=answer)


def answered(text: str = f"{THINK} <answer> Paris </answer>") -> Turn:
    return Turn(text, "answer")


def score(record: Trajectory, golds="Paris", protocol=None, **options) -> float:
    reward = RewardSum.from_config([{"term": "search_r1_format", **options}], protocol)
    return reward(record, golds)["score"]


HINTED = Turn("<think> no action </think>", "invalid", status="invalid")
VALID = trajectory(searched(), searched(), answered())
TABLE = [
    # what, trajectory, gold, value
    ("right, valid", VALID, "Paris", 1.0),
    ("right, valid, no search", trajectory(answered()), "Paris", 1.0),
    (
        "right, no think before the answer",
        trajectory(searched(), answered("<answer>Paris</answer>")),
        "Paris",
        0.8,
    ),
    (
        "right, no think before the search",
        trajectory(searched("<search> q </search>"), answered()),
        "Paris",
        0.8,
    ),
    (
        "right, text between the blocks",
        trajectory(searched(f"{THINK} so <search> q </search>"), answered()),
        "Paris",
        0.8,
    ),
    ("right, text before", trajectory(answered(f"Well. {THINK}<answer>Paris</answer>")), "Paris", 0.8),
    ("right, text after", trajectory(answered(f"{THINK}<answer>Paris</answer> done")), "Paris", 0.8),
    ("right, two thinks", trajectory(answered(f"{THINK}{THINK}<answer>Paris</answer>")), "Paris", 0.8),
    (
        "right, a tag inside the think",
        trajectory(answered("<think> <search> </think><answer>Paris</answer>")),
        "Paris",
        0.8,
    ),
    (
        "right, made-up information",
        trajectory(
            searched("<think> <information>Paris</information> </think><search>q</search>"), answered()
        ),
        "Paris",
        0.8,
    ),
    ("right, an invalid turn on the way", trajectory(HINTED, answered()), "Paris", 0.8),
    ("wrong, valid", VALID, "Rome", 0.2),
    (
        "wrong, valid, gold retrieved",
        trajectory(searched(documents=[LYON, PARIS]), answered()),
        "France",
        0.2,
    ),
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


def test_the_weights_of_the_formula_are_options():
    options = {"structure": 0.3, "final": 0.05, "retrieval": 0.1}
    found = trajectory(searched(documents=[LYON, PARIS]), answered(f"{THINK}<answer>Lyon</answer>"))
    assert score(found, "Paris", **options) == pytest.approx(0.4)
    assert score(found, "Pari", **options) == pytest.approx(0.3)  # a part of a word is not found
    assert score(found, "The", **options) == pytest.approx(
        0.3
    )  # a gold of articles only does not stand everywhere
    assert score(trajectory(answered("<answer>Paris</answer>")), "Paris", **options) == pytest.approx(0.7)
    invalid = trajectory(searched(documents=[PARIS]), answered("<answer>Lyon</answer>"))
    assert score(invalid, "Paris", **options) == pytest.approx(0.05)


def test_a_user_protocol_brings_its_own_tags(tmp_path):
    from rag_r1 import protocols

    text = next(iter(protocols.__path__)) + "/search_r1.yaml"
    data = yaml.safe_load(open(text, encoding="utf-8"))
    data["name"] = "own"
    data["tags"]["think"] = ["<plan>", "</plan>"]
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    own = load_protocol(str(path))
    planned = trajectory(answered("<plan> p </plan><answer>Paris</answer>"), protocol="own")
    assert score(planned, protocol=own) == 1.0
    assert score(trajectory(answered(), protocol="own"), protocol=own) == pytest.approx(0.8)


class Characters:
    """A tokenizer with one token a character."""

    def encode(self, text):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


class Scripted:
    """An engine that says what it is told, and a search engine that always finds the same."""

    def __init__(self, *texts):
        self.texts = list(texts)

    async def generate(self, context, max_tokens, stop):
        return Generation([ord(c) for c in self.texts.pop(0)])

    async def search(self, queries):
        return [
            [Document("1", '"<answer>Paris</answer>"\n<think>x</think><answer>Paris</answer>')]
            for _ in queries
        ]


ALL_TERMS = [{"term": term} for term in ("em", "f1", "cover_em", "search_r1_format")]


@pytest.mark.parametrize("name", ["search_r1", "rag_r1_sq", "rag_r1_mq"])
def test_neither_the_prompts_example_nor_an_answer_in_a_document_earns_anything(name):
    protocol = load_protocol(name)
    script = Scripted("<think>a</think><search>q</search>", "<think>b</think>")
    budget = Budget.from_config({"max_turns": 1}, max_response_tokens=20_000)
    prompt = protocol.messages("?")[0]["content"]
    assert "<answer> Beijing </answer>" in prompt
    episode = Episode(protocol, budget, script, search_tools(script), Characters())
    record = asyncio.run(episode.run("t", "?", Characters().encode(prompt)))
    assert record.turns[0].documents, "the document was shown"
    for gold in ("Beijing", "Paris"):
        assert set(RewardSum.from_config(ALL_TERMS)(record, gold).values()) == {0.0}


@pytest.mark.parametrize("name", ["search_r1", "rag_r1_sq", "rag_r1_mq"])
def test_a_played_episode_is_valid_and_right(name):
    script = Scripted("<think>a</think>\n<search> q </search>", "\n<think>b</think><answer> Paris </answer>")
    budget = Budget.from_config({}, max_response_tokens=20_000)
    episode = Episode(load_protocol(name), budget, script, search_tools(script), Characters())
    record = asyncio.run(episode.run("t", "?", [1]))
    reward = RewardSum.from_config(ALL_TERMS)
    assert reward(record, "Paris")["search_r1_format"] == 1.0
    assert reward(Trajectory.from_dict(record.to_dict()), "Paris") == reward(record, "Paris")
