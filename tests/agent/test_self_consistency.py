"""Several paths of a question: the answer with most votes counts, and the record shows all of them."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Trajectory, sample_paths
from rag_r1.agent.self_consistency import majority_vote
from rag_r1.protocols import Failure, load_protocol
from tests.fakes.scripted_engine import SEARCH, Engine, Searcher, make_episode

SQ = load_protocol("rag_r1_sq")


def answered(*answers):
    return [
        Trajectory("q", "Who?", "rag_r1_sq", answer=item, seconds=float(i)) for i, item in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("answers", "path"),
    [
        (["Ulm", "Rome", "Rome"], 1),
        (["Ulm", "Rome", "rome.", " ROME "], 1),
        (["Ulm", "Rome", "Paris"], 0),
        ([None, "Rome", None], 1),
        (["", " ", "Rome"], 2),
        ([None, None], 0),
        (["Rome"], 0),
    ],
)
def test_the_first_path_with_the_answer_of_most_counts(answers, path):
    best = majority_vote(answered(*answers))
    assert (best.answer, best.path) == (answers[path], path)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=2, max_size=6), st.randoms())
def test_the_order_of_the_paths_decides_nothing_but_ties(answers, random):
    mixed = random.sample(answers, len(answers))
    counts = [answers.count(item) for item in set(answers) - {None}]
    if counts and counts.count(max(counts)) == 1:
        assert majority_vote(answered(*answers)).answer == majority_vote(answered(*mixed)).answer


def test_the_record_shows_all_paths_and_survives_json():
    best = majority_vote(answered("Ulm", "Rome", "Rome"))
    assert [path["answer"] for path in best.paths] == ["Ulm", "Rome", "Rome"]
    assert [path["path"] for path in best.paths] == [0, 1, 2]
    assert best.paths[1] == {**best.to_dict(), "paths": [], "seconds": 1.0}
    assert best.seconds == 2.0
    data = best.to_dict()
    assert Trajectory.from_dict(json.loads(json.dumps(data))) == best
    data["paths"][0]["answer"] = "changed"
    assert best.paths[0]["answer"] == "Ulm"


def test_one_path_is_the_record_itself():
    (record,) = answered("Rome")
    assert majority_vote([record]) is record and record.paths == []


def test_a_path_that_failed_stands_for_all_if_its_failure_is_masked():
    records = answered("Rome", "Rome", None)
    records[2].add_failure("retriever", "away")
    assert majority_vote(records, ("retriever",)).path == 2
    assert majority_vote(answered("Rome", "Rome", None)).path == 0
    records[2].paths, records[2].path = [], 0
    assert majority_vote(records).path == 0


def test_paths_share_nothing_but_the_question():
    lines = [
        [SEARCH, "<answer> Rome </answer>"],
        ["<answer> Ulm </answer>"],
        [SEARCH, "<answer> Rome </answer>"],
    ]
    engines = [Engine(report) for report in lines]

    async def path(number):
        results = Failure("no answer", "retriever") if number == 1 else []
        episode = make_episode(SQ, engines[number], Searcher(results), paths=3)
        return await episode.run("q", "Who?", [ord("P")])

    best = asyncio.run(sample_paths(path, 3))
    assert (best.answer, best.path) == ("Rome", 0)
    assert [engine.contexts[0] for engine in engines] == ["P"] * 3
    assert [len(engine.contexts) for engine in engines] == [2, 1, 2]
