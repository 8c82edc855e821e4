"""`rag-r1 retriever select`: rows from recorded scores, also of the published pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_r1.cli import main
from rag_r1.retriever.records import TrainingRow, read_records
from rag_r1.retriever.selection.arguments import SelectArguments
from rag_r1.retriever.selection.scores import ScoreFiles
from tests.retriever.small_training import write_lines

NAMES = [f"p{number}" for number in range(20)]


def correctness(query_id: str, right: str, names=NAMES, index: int = 2) -> dict:
    scores = {name: {"metric_score": {"em": float(name in right)}, "retrieved_times": 1} for name in names}
    return {
        "id": query_id,
        "question": "Who?",
        "round_index": index,
        "history_queries": ["first"],
        "current_query": "second",
        "docid_score": scores,
    }


def relevance(query_id: str, best: dict[str, int], names=NAMES, index: int = 2) -> dict:
    return {"id": query_id, "round_index": index, "docid_score": {name: best.get(name, 0) for name in names}}


def candidates(query_id: str, names=NAMES) -> dict:
    rounds = [
        {"round_index": i, "reasoning_context": "", "current_query": query, "candidate_passage_ids": ids}
        for i, query, ids in ((1, "first", []), (2, "second", names))
    ]
    return {"id": query_id, "question": "Who?", "golden_answers": ["Rome"], "trajectory": rounds}


def words(folder: Path, *names: str, **flags: str) -> list[str]:
    paths = {name: str(folder / f"{name}.jsonl") for name in names}
    paths = {**paths, "out": str(folder / "train.jsonl"), **flags}
    return ["retriever", "select", *(w for k, v in paths.items() for w in (f"--{k.replace('_', '-')}", v))]


def test_rows_are_selected_from_published_scores(tmp_path, capsys):
    write_lines(tmp_path / "correctness.jsonl", correctness("q1", "p3"), correctness("q2", "-"))
    write_lines(tmp_path / "relevance.jsonl", relevance("q2", {}), relevance("q1", {"p3": 90, "p0": 100}))
    options = words(tmp_path, "correctness", "relevance", dataset="hotpotqa", selection="faithful")
    assert main(options) == 0
    (row,) = read_records(TrainingRow, tmp_path / "train.jsonl")
    assert (row.dataset, row.query_id, row.query_text) == ("hotpotqa", "q1", "second")
    assert (row.passage_ids[0], row.history_queries, row.round_index) == ("p3", ("first",), 2)
    output = capsys.readouterr().out
    assert "training rows: 1 of 1 rounds" in output
    assert "left out: 1 rounds, no candidate leads to a right answer" in output


@pytest.mark.parametrize("check_only", [(), ("--check-only",)])
def test_all_problems_of_the_four_files_are_reported_in_one_run(tmp_path, capsys, check_only):
    """There are no more than four: three files are read and one is written."""
    (tmp_path / "train.jsonl").mkdir()
    write_lines(tmp_path / "correctness.jsonl", correctness("q1", "p3"), {"id": "q2"})
    write_lines(tmp_path / "relevance.jsonl", {"id": "q1"})
    assert main([*words(tmp_path, "candidates", "correctness", "relevance"), *check_only]) == 1
    message = capsys.readouterr().err
    named = ["candidates.jsonl cannot be read", "correctness.jsonl, line 2", "relevance.jsonl, line 1"]
    named += ["train.jsonl is a folder"]
    assert [name for name in named if name not in message] == [] and "4 problems" in message


def test_check_only_writes_no_rows(tmp_path, capsys):
    write_lines(tmp_path / "correctness.jsonl", correctness("q1", "p3"))
    options = words(tmp_path, "correctness", utility="correctness")
    assert main([*options, "--check-only"]) == 0
    assert capsys.readouterr().out.startswith("all checks passed") and not (tmp_path / "train.jsonl").exists()


def test_with_candidates_their_order_holds_and_relevance_alone_names_its_query(tmp_path):
    write_lines(tmp_path / "candidates.jsonl", candidates("q2", NAMES[::-1]), candidates("q1"))
    scores = {"p4": 80, "p9": 80}
    write_lines(tmp_path / "relevance.jsonl", relevance("q1", scores), relevance("q2", scores))
    assert main(words(tmp_path, "candidates", "relevance", utility="relevance")) == 0
    rows = list(read_records(TrainingRow, tmp_path / "train.jsonl"))
    assert [(row.query_id, row.passage_ids[0]) for row in rows] == [
        ("q2", "p9"),
        ("q2", "p4"),
        ("q1", "p4"),
        ("q1", "p9"),
    ]
    assert {row.query_text for row in rows} == {"second"}
    assert {(row.question, row.history_queries) for row in rows} == {("Who?", ("first",))}


def test_rows_have_the_thoughts_of_the_candidates_if_those_know_them(tmp_path):
    known, unknown = candidates("q1"), candidates("q2")
    known["trajectory"][1]["reasoning"] = "Now the second."
    write_lines(tmp_path / "candidates.jsonl", known, unknown)
    write_lines(tmp_path / "relevance.jsonl", *(relevance(name, {"p4": 80}) for name in ("q1", "q2")))
    assert main(words(tmp_path, "candidates", "relevance", utility="relevance")) == 0
    rows = list(read_records(TrainingRow, tmp_path / "train.jsonl"))
    assert [(row.query_id, row.reasoning) for row in rows] == [("q1", "Now the second."), ("q2", None)]
    assert ["reasoning" in line for line in (tmp_path / "train.jsonl").read_text().splitlines()] == [
        True,
        False,
    ]


def test_if_no_round_gives_a_row_the_reason_is_told_and_the_old_rows_stay(tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text("before")
    write_lines(tmp_path / "correctness.jsonl", correctness("q1", "p3"), correctness("q2", "p3"))
    write_lines(tmp_path / "relevance.jsonl", relevance("q1", {"p3": 90}, NAMES[:-1]))
    assert main(words(tmp_path, "correctness", "relevance")) == 1
    assert "left out: 2 rounds, a score is missing" in capsys.readouterr().err
    assert (tmp_path / "train.jsonl").read_text() == "before"


def test_each_empty_file_is_named(tmp_path, capsys):
    for name in ("candidates", "correctness", "relevance"):
        write_lines(tmp_path / f"{name}.jsonl")
    assert main([*words(tmp_path, "candidates", "correctness", "relevance"), "--check-only"]) == 1
    message = capsys.readouterr().err
    assert "3 problems" in message and "relevance.jsonl is empty" in message


def test_a_round_that_is_there_twice_is_an_error(tmp_path, capsys):
    write_lines(tmp_path / "correctness.jsonl", correctness("q1", "p3"))
    write_lines(tmp_path / "relevance.jsonl", relevance("q1", {}), relevance("q1", {}))
    assert main(words(tmp_path, "correctness", "relevance")) == 1
    assert "has round 2 of q1 twice" in capsys.readouterr().err


def test_a_wrong_line_ends_the_command_and_leaves_the_old_rows(tmp_path, capsys):
    write_lines(tmp_path / "correctness.jsonl", correctness("q1", "p3"), {"id": "q2"})
    (tmp_path / "train.jsonl").write_text("before")
    assert main(words(tmp_path, "correctness", utility="correctness")) == 1
    assert "correctness.jsonl, line 2 is not a line of correctness.jsonl" in capsys.readouterr().err
    assert (tmp_path / "train.jsonl").read_text() == "before"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"correctness": "c"}, "--utility both needs --relevance"),
        ({"relevance": "r"}, "--utility both needs --correctness"),
        ({"relevance": "r", "utility": "relevance"}, "--candidates is needed"),
        ({"correctness": "o", "utility": "correctness"}, "also a file that is read"),
    ],
)
def test_what_is_missing_is_told_by_its_flag(options, message):
    with pytest.raises(ValueError, match=message):
        SelectArguments(out="o", **options)


def test_an_input_is_not_replaced_under_another_spelling(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="also a file that is read"):
        SelectArguments(out=tmp_path / "c", correctness=Path("c"), utility="correctness")
    with pytest.raises(ValueError, match="have the queries: give one of them"):
        list(ScoreFiles().rounds())


def test_the_command_lists_its_subcommands_and_refuses_others(capsys):
    assert main(["retriever", "--help"]) == 0
    output = capsys.readouterr().out
    assert "data" in output and "select" in output
    assert main(["retriever"]) == 2 and main(["retriever", "nothing"]) == 2
    assert "there is no command 'nothing'" in capsys.readouterr().err
