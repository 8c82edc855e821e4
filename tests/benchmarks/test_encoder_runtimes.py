"""The benchmark of what computes the encoder: its measures, and a small run of it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.encoder_runtimes import first_ids, main


def test_the_best_ten_are_those_of_the_largest_products_and_ties_are_in_corpus_order():
    passages = np.eye(12, dtype=np.float32)
    queries = np.zeros((1, 12), dtype=np.float32)
    queries[0, [7, 3, 9]] = [1.0, 2.0, 1.0]
    assert first_ids(queries, passages).tolist() == [[3, 7, 9, 0, 1, 2, 4, 5, 6, 8]]


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["speed", "recall"])
def test_a_small_run_prints_a_table(measure, towns, tmp_path, capsys):
    assert main([measure, *towns, "--rounds", "1", "--encoder-cache", str(tmp_path / "kept")]) == 0
    printed = capsys.readouterr().out
    if measure == "speed":
        assert "| one question at once |" in printed and "1.00 x" in printed
    else:
        assert "| torch float32 | torch float32 | 100.0% |" in printed, "recall@1: each town has its passage"
