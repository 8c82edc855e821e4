"""The smoke run on real questions and passages, and its check of the trajectories."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rag_r1.agent import Budget, Episode, Trajectory
from rag_r1.protocols import load_protocol
from rag_r1.tools import RetrievalClient, RetrieverConfig, search_tools
from rag_r1.tools.retrieval.local_server import retrieval_process
from tests.fakes.scripted_engine import Characters, Engine
from tests.recipes.composed_recipes import refusals
from tests.recipes.smoke_recipe import cached_index, real_inputs, smoke_run


def record(status: str = "answered", documents: int = 3) -> dict[str, Any]:
    passages = [{"id": "1", "contents": "x"}] * documents
    return {"status": status, "turns": [{"calls": [{"tool": "search", "documents": passages}]}]}


def dump(folder: Path, **splits: list[dict[str, Any]]) -> Path:
    for split, records in splits.items():
        (folder / split).mkdir(parents=True)
        (folder / split / "step_000001-1.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


@pytest.mark.slow
def test_the_recipe_is_for_a_cpu_and_nothing_is_refused(compose):
    config = compose("recipes/smoke/hotpotqa")
    assert config.trainer.device == "cpu"
    assert refusals(config) == []


def test_data_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(smoke_run.SmokeError, match=r"hotpotqa_corpus\.jsonl\.gz.*RAG_R1_DATA"):
        smoke_run.Inputs.find(tmp_path)


def test_right_trajectories_are_counted(tmp_path: Path):
    folder = dump(tmp_path, train=[record(), record("turn_limit")], test=[record()])
    counts = smoke_run.check(folder, {"train": 2, "test": 1})
    assert counts["trajectories"] == {"train": 2, "test": 1}
    assert counts["statuses"] == {"answered": 2, "turn_limit": 1}
    assert counts["passages"] == 9


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([record()], "1, 'test': 0"),
        ([record(), record("tool_failure")], "tool_failure"),
        ([record(), record("bad_row")], "bad_row"),
        ([record(), record("error")], "error"),
        ([record(documents=0), record(documents=0)], "no search returned a passage"),
    ],
)
def test_wrong_trajectories_fail_the_run(tmp_path: Path, records: list, words: str):
    with pytest.raises(smoke_run.SmokeError, match=words):
        smoke_run.check(dump(tmp_path, train=records), {"train": 2, "test": 0})


def test_expected_trajectories_follow_the_overrides():
    assert smoke_run.expected_trajectories() == {"train": 2 * 8 * 4, "test": 16}
    changed = smoke_run.expected_trajectories(
        ["trainer.total_training_steps=3", "data.val_max_samples=4", "rag_r1.retriever.topk=1"]
    )
    assert changed == {"train": 3 * 8 * 4, "test": 4}


def test_added_and_deleted_keys_are_overrides_too():
    changes = ["++data.val_max_samples=4", "~trainer.logger"]
    assert smoke_run.expected_trajectories(changes)["test"] == 4


def test_validations_on_the_way_are_expected_too():
    every_second = ["trainer.total_training_steps=3", "trainer.test_freq=2"]
    assert smoke_run.expected_trajectories(every_second)["test"] == 16 * 3  # before, after 2, after 3


async def ask(url: str, questions: list[str]) -> list[tuple[Trajectory, str]]:
    """An episode for each question, all at once: its record, and what the policy read and wrote."""
    searcher = RetrievalClient(RetrieverConfig(url=url, topk=3))

    async def play(question: str):
        budget = Budget(max_query_observation_tokens=20_000, max_response_tokens=40_000)
        policy = Engine([f"<search> {question} </search>", "<answer> x </answer>"])
        episode = Episode(load_protocol("rag_r1_mq"), budget, policy, search_tools(searcher), Characters())
        record = await episode.run(question, question, [0])
        return record, Characters().decode(episode.ledger.row().response_ids)

    try:
        return await asyncio.gather(*map(play, questions))
    finally:
        await searcher.close()


@pytest.mark.parametrize(
    "backend",
    [pytest.param("bm25", marks=pytest.mark.slow), pytest.param("dense", marks=pytest.mark.nightly)],
)
def test_an_agent_finds_real_passages_for_real_questions(tmp_path: Path, backend: str):
    """The smoke run but for the training, over all passages. The training itself is one of tests/e2e."""
    inputs = real_inputs()
    rows = pq.read_table(smoke_run.questions_to_parquet(inputs, tmp_path) / "test.parquet").to_pylist()
    assert len(rows) == len(json.loads(inputs.validation.read_text("utf-8")))
    # Without the commas at which this dialect parts two queries.
    questions = [row["extra_info"]["question"].replace(",", "") for row in rows[:32]]
    index = (
        cached_index(inputs, "dense")
        if backend == "dense"
        else smoke_run.make_index(inputs, "bm25", tmp_path)
    )
    with gzip.open(inputs.corpus, "rt", encoding="utf-8") as file:
        corpus = {row["id"]: row["contents"] for row in map(json.loads, file)}
    assert json.loads((index / "manifest.json").read_text())["count"] == len(corpus) > 9000
    with retrieval_process(index, tmp_path / "server.log") as url:
        played = asyncio.run(ask(url, questions))
    for record, text in played:
        assert (record.status, record.failures) == ("answered", [])
        (documents,) = record.turns[0].documents
        assert len(documents) == 3
        for document in documents:
            assert corpus[document.id] == document.contents and json.dumps(document.text[:40])[1:-1] in text
