"""The benchmark of what computes the encoder: its measures, and a small run of it."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from benchmarks.encoder_runtimes import first_ids, main

TOWNS = ["Ulm lies on the Danube.", "Trier lies on the Mosel.", "Kassel lies on the Fulda."]


def test_the_best_ten_are_those_of_the_largest_products_and_ties_are_in_corpus_order():
    passages = np.eye(12, dtype=np.float32)
    queries = np.zeros((1, 12), dtype=np.float32)
    queries[0, [7, 3, 9]] = [1.0, 2.0, 1.0]
    assert first_ids(queries, passages).tolist() == [[3, 7, 9, 0, 1, 2, 4, 5, 6, 8]]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["speed", "recall"])
def test_a_small_run_prints_a_table(what, tmp_path, capsys):
    questions, corpus = tmp_path / "questions.jsonl", tmp_path / "corpus.jsonl.gz"
    with questions.open("w") as asked, gzip.open(corpus, "wt") as passages:
        for key, text in enumerate(TOWNS):
            question = {"question": f"Where is {text.split()[0]}?", "supporting_ids": [str(key)]}
            print(json.dumps(question), file=asked)
            print(json.dumps({"id": str(key), "contents": text}), file=passages)
    files = ["--questions", str(questions), "--corpus", str(corpus)]
    assert main([what, *files, "--rounds", "1", "--encoder-cache", str(tmp_path / "kept")]) == 0
    printed = capsys.readouterr().out
    if what == "speed":
        assert "| one question at once |" in printed and "1.00 x" in printed
    else:
        assert "| torch float32 | torch float32 | 100.0% |" in printed, "recall@1: each town has its passage"
