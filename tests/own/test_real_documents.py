"""`rag-r1 own` on twenty real documents, this project's guides, with a teacher that knows nothing of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rag_r1.cli import main
from rag_r1.data.rows import QuestionRow, read_rows
from tests.fakes import cloze_teacher
from tests.fakes.own_teacher import ListingServer
from tests.own.conftest import MODEL

pytestmark = pytest.mark.slow

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
DOCUMENTS = 20
WHOLE_PASSAGES = "rag_r1.agent.max_query_observation_tokens=600"
#: Cut off by a passage's end, a sentence is still a sentence; a gap can be found in several passages.
RIGHT_TRACES = 0.6


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "guides"
    folder.mkdir()
    guides = [path for path in sorted(GUIDES.glob("*.md")) if path.name != "README.md"]
    for path in guides[:DOCUMENTS]:
        shutil.copy(path, folder)
    assert len(list(folder.iterdir())) == DOCUMENTS
    return folder


@pytest.fixture(scope="module")
def run(documents: Path, tmp_path_factory) -> Iterator[Path]:
    """The folder of a run up to the traces."""
    out = tmp_path_factory.mktemp("run") / "own"
    with ListingServer(cloze_teacher.reply) as teacher, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAG_R1_PIPELINE", "")
        words = ["--model", str(MODEL), "--platform", "cpu", "--per-kind", "150", "--until", "traces"]
        words += ["questions.kinds=[one_hop, number_date]", f"policy.keys=[{WHOLE_PASSAGES}]"]
        assert main(["own", str(documents), "--out", str(out), "--teacher", teacher.base, *words]) == 0
        yield out


def test_every_kept_question_is_answered_by_the_passage_that_it_names(run: Path):
    lines = (run / "documents" / "corpus.jsonl").read_text().splitlines()
    passages = {passage["id"]: passage["text"] for passage in map(json.loads, lines)}
    rows = [
        QuestionRow.from_row(row)
        for split in ("train", "test")
        for row in read_rows(run / "questions" / f"{split}.parquet")
    ]
    assert len(rows) > DOCUMENTS
    for row in rows:
        (gold,) = row.metadata["supporting_ids"]
        assert cloze_teacher.fill(row.question, [passages[gold]]) in row.golds


def test_most_traces_find_the_answer_by_a_search(run: Path):
    facts = json.loads((run / "traces" / "done.json").read_text())["facts"]
    assert facts["right"] >= RIGHT_TRACES * facts["judged"] > 0
