"""The table of compressed indexes: what is compared with what."""

from __future__ import annotations

import json

import pytest

from benchmarks import compressed_answers
from benchmarks.compressed_answers import Loop, queries_of, read_figures, table


def index(folder, results, em, rows=None):
    """The folder of an index whose agent has played."""
    (folder / "run").mkdir(parents=True)
    means = {"em": em, "queries": 1.5, "recall": 0.9}
    report = {"figures": {name: {"mean": {"value": value}} for name, value in means.items()}}
    (folder / "run" / "report.json").write_text(json.dumps(report))
    (folder / "found.json").write_text(json.dumps(results))
    (folder / "index.json").write_text(json.dumps({"memory": 16.4, "disk": rows or 0.0, "queries": 2}))


@pytest.fixture
def out(tmp_path):
    index(tmp_path / "seed0" / "exact", [["a", "b", "c"], ["d", "e", "f"]], 0.75)
    index(tmp_path / "seed0" / "PQ4", [["a", "c", "x"], ["e", "d", "y"]], 0.5)
    return tmp_path


def test_an_index_is_compared_with_exact_search_of_the_same_queries(out):
    figures = read_figures(out / "seed0" / "PQ4")
    assert figures["same"] == 0.5 and figures["recall"] == pytest.approx(4 / 6)
    assert read_figures(out / "seed0" / "exact")["same"] == 1.0


def test_the_table_has_a_row_for_each_index_that_is_there_and_a_figure_for_each_seed(out):
    index(out / "seed1" / "exact", [["a", "b", "c"]], 0.25)
    lines = table(out, [0, 1, 2]).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| exact", "| PQ4"]
    assert "| 0.750 0.250 |" in lines[2] and "| 0.500 |" in lines[3] and "| 16 |" in lines[3]


def test_the_queries_are_those_that_were_sent_in_their_order(tmp_path):
    def turn(*queries):
        return {"calls": [{"tool": "search", "sent": {"query": query}} for query in queries]}

    (tmp_path / "trajectories").mkdir()
    rows = [{"turns": [turn("a", "b"), turn()]}, {"turns": [turn("c"), {"calls": [{"tool": "other"}]}]}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "trajectories" / "records.jsonl").write_text(text)
    assert queries_of(tmp_path) == ["a", "b", "c"]


def test_a_loop_that_is_not_finished_is_refused_with_the_command(tmp_path):
    with pytest.raises(SystemExit, match="examples.agentic_r.run"):
        Loop.of(tmp_path)


def test_every_index_is_one_that_a_build_takes():
    from retrieval_server.build_options import BuildCommand
    from retrieval_server.command_line import parse
    from retrieval_server.indexing.faiss_build import make_index

    for flags in compressed_answers.INDEXES.values():
        words = ["--corpus", "c", "--out", "o", "--backend", "dense", "--encoder", "minilm", *flags]
        parse(BuildCommand, "", words)
        if "--factory" in flags:
            assert make_index(flags[1], 128).d == 128
