"""The bar, on the real HotpotQA corpus: 300 deleted gold passages are all missed, by ids and by titles."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

DATA = Path(os.environ.get("RAG_R1_DATA") or Path(__file__).parents[3] / "shared" / "data")
CORPUS, QUESTIONS = DATA / "corpus" / "hotpotqa_corpus.jsonl.gz", DATA / "qa" / "hotpotqa.jsonl"
_PATH = Path(__file__).parents[2] / "benchmarks" / "corpus_check.py"
_spec = importlib.util.spec_from_file_location("corpus_check", _PATH)
corpus_check = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus_check)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CORPUS.is_file() and QUESTIONS.is_file()),
        reason="left out: the real HotpotQA corpus is not there (RAG_R1_DATA names its folder)",
    ),
]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """The corpus, without 300 of the supporting passages."""
    return corpus_check.prepare(CORPUS, QUESTIONS, tmp_path_factory.mktemp("cut"), 300, 0)


def test_every_affected_question_is_found_by_ids_and_by_titles_in_any_spelling(setting, tmp_path):
    assert len(setting.affected) > 200
    rows = corpus_check.evidence_rows(setting, tmp_path)
    assert len(rows) == len(corpus_check.SPELLINGS) + 2
    for name, flagged, _, others in rows:
        assert (flagged, others) == (len(setting.affected), 0), name


@pytest.mark.full
def test_after_the_repair_the_server_finds_the_gold_passages_as_before(setting, tmp_path):
    table, strings = corpus_check.recall_table(setting, tmp_path, 10)
    (_, whole, before, _), (_, cut, without, share), (_, repaired, after, answerable) = table
    assert (whole, cut, repaired) == (9756, 9456, 9756)
    assert after == pytest.approx(before, abs=0.002) and without < before - 0.2
    assert share == pytest.approx(1 - len(setting.affected) / 500) and answerable == 1
    rows = corpus_check.string_rows(setting, strings)
    assert all(0 < precision <= 1 and 0 < recall <= 1 for _, _, precision, recall in rows)
