"""What a report reads: broken, repeated and hostile records, and side files. And the command."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from rag_r1.evaluation.report.report import main
from rag_r1.evaluation.report.run_table import read_run
from rag_r1.io.errors import DataError
from rag_r1.protocols import Document
from rag_r1.runs.errors import RunError
from tests.evaluation.finished_runs import card, record, write_run

DATA = Path(os.environ.get("RAG_R1_DATA") or Path(__file__).parents[4] / "shared" / "data")
REAL = DATA / "qa" / "hotpotqa.jsonl"


def em(table) -> list[float]:
    return table.columns["em:squad"].tolist()


WRONG_FIELDS = {
    "golds": [],
    "answer": 7,
    "turns": [1],
    "seconds": "long",
    "rewards": {"judge": math.nan},
    "failures": [{"kind": [], "turn": 0}],
}
BAD = {
    "no trajectory": {"id": "x"},
    "no id": {name: value for name, value in record("bad").items() if name != "id"},
    **{name: {**record("bad"), name: value} for name, value in WRONG_FIELDS.items()},
    "calls": {**record("bad"), "turns": [{"text": "", "action": "search", "calls": "x"}]},
    "infinite seconds": {**record("bad"), "seconds": math.inf},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_record_that_cannot_be_used_is_refused_or_left_out(tmp_path, bad):
    run = write_run(tmp_path, [record("a"), bad])
    with pytest.raises(RunError, match=r"nothing was written.*1 bad row:.*--skip-bad-rows"):
        read_run(run)
    table = read_run(run, skip_bad_rows=True)
    assert em(table) == [1.0] and table.bad.count == 1


def test_bad_lines_are_counted_and_a_last_line_that_was_cut_off_by_a_kill_is_none(tmp_path):
    run = write_run(tmp_path, [record("a"), {**record("x"), "id": "bad", "answer": 1}])
    with (run / "step_000000-1.jsonl").open("a") as file:
        file.write("no JSON\n" + json.dumps(record("b"))[:40])
    with pytest.raises(RunError, match="2 bad rows: .*record 'bad'"):
        read_run(run)
    table = read_run(run, skip_bad_rows=True)
    assert em(table) == [1.0] and table.bad.count == 2


def test_a_record_that_failed_gives_way_to_one_that_did_not(tmp_path):
    again = [record("a", None, failure="engine"), record("a"), record("b", None, failure="engine")]
    for name, records in (("a", again), ("b", again[::-1])):
        table = read_run(write_run(tmp_path / name, records))
        assert table.failed.tolist() == [False, True] and em(table)[0] == 1.0
        assert table.replaced == 1


def test_two_different_answers_to_the_same_are_a_bad_row_whatever_their_order(tmp_path):
    both = [record("a"), record("a", "Rome")]
    tables = []
    for name, records in (("a", both), ("b", both[::-1])):
        run = write_run(tmp_path / name, records)
        with pytest.raises(RunError, match="another record of the same episode"):
            read_run(run)
        tables.append(read_run(run, skip_bad_rows=True))
    assert em(tables[0]) == em(tables[1]) and len(tables[0].keys) == 1


def test_the_trajectories_of_a_run_folder_are_read_and_nothing_beside_them(tmp_path):
    write_run(tmp_path / "trajectories" / "test", [record("a")])
    (tmp_path / "questions.jsonl").write_text('{"question": "not a record"}\n')
    assert em(read_run(tmp_path)) == [1.0]


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(RunError, match="has no trajectory records"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "hotpotqa/test/1\n\nhotpotqa/test/2\n",
        "1\n2\n",
        '{"hotpotqa": ["hotpotqa/test/1", "2"], "popqa": ["hotpotqa/test/3", "9"]}',
        '["1", "2"]',
        '\ufeff["1", "2"]',  # as some editors save it
        '[\n  "1",\n  "2"\n]\n',
        '{"id": "1"}\n{"id": "2", "answerable": true}\n{"id": "3", "answerable": false}\n',
        '[{"id": 1}, {"id": 2}]',
    ],
)
def test_the_scores_of_answerable_questions(tmp_path, text):
    records = [record(f"hotpotqa/test/{i}", "Paris" if i != 2 else "Rome") for i in range(1, 5)]
    records.append(record("nq/test/9", source="nq"))  # of a source of which the file lists nothing
    (tmp_path / "ids").write_text(text)
    table = read_run(write_run(tmp_path / "run", records), answerable=tmp_path / "ids")
    known = table.columns["answerable"]
    assert known[:4].tolist() == [1.0, 1.0, 0.0, 0.0] and math.isnan(known[4])


@pytest.mark.parametrize(
    "text, other", [("1\n", "nq/test/1"), ('{"hotpotqa": ["1"]}', "hotpotqa/train/1")], ids=["any", "source"]
)
def test_an_own_id_of_two_questions_is_refused(tmp_path, text, other):
    (tmp_path / "ids").write_text(text)
    first = record(other, source=other.partition("/")[0])
    run = write_run(tmp_path / "run", [first, record("hotpotqa/test/1")])
    with pytest.raises(DataError, match="two questions of the run have the same short id"):
        read_run(run, answerable=tmp_path / "ids")


def test_an_id_that_two_sources_have_is_refused_unless_the_file_names_the_source(tmp_path):
    run = write_run(tmp_path / "run", [record("9", source="nq"), record("9", source="popqa")])
    (tmp_path / "ids").write_text("9\n")
    with pytest.raises(DataError, match="'9' is 'nq: 9' and 'popqa: 9'.*lists by data source"):
        read_run(run, answerable=tmp_path / "ids")
    (tmp_path / "ids").write_text('{"nq": ["9"]}')
    assert math.isnan(read_run(run, answerable=tmp_path / "ids").columns["answerable"][1])


def test_a_side_file_about_other_data_is_refused(tmp_path):
    (tmp_path / "ids").write_text("other\n")
    run = write_run(tmp_path / "run", [record("a")])
    with pytest.raises(DataError, match="names none of the run's questions"):
        read_run(run, answerable=tmp_path / "ids")
    with pytest.raises(DataError, match="cannot read"):
        read_run(run, supporting=tmp_path / "nowhere")


def test_gold_passages_from_a_side_file_stand_above_the_records(tmp_path):
    rows = [{"id": "a", "supporting_ids": ["7"]}, {"id": "b", "supporting_titles": ["Rome"]}, {"id": "c"}]
    (tmp_path / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = [Document("7", "Paris\nA town.")]
    records = [record("a", documents=documents, supporting_ids=["8"]), record("b", documents=documents)]
    run = write_run(tmp_path / "run", records)
    with pytest.raises(RunError, match="row 3: needs an `id` and `supporting_ids`"):
        read_run(run, supporting=tmp_path / "passages.jsonl")
    table = read_run(run, supporting=tmp_path / "passages.jsonl", skip_bad_rows=True)
    assert table.columns["recall"].tolist() == [1.0, 0.0]


@pytest.mark.skipif(
    not REAL.exists(), reason="left out: the real questions are not there (RAG_R1_DATA names their folder)"
)
def test_the_recall_of_real_questions_that_found_their_first_passage(tmp_path):
    """HotpotQA's questions need two passages each; the file of questions is the side file."""
    records, expected = [], []
    for row in map(json.loads, REAL.read_text("utf-8").splitlines()[:50]):
        first, *others = row["supporting_ids"]
        question_id, golds = f"hotpotqa/test/{row['id']}", row["golden_answers"]
        records.append(record(question_id, golds[0], golds=golds, documents=[Document(first, "text")]))
        expected.append((question_id, 1 / (1 + len(others))))
    table = read_run(write_run(tmp_path, records), supporting=REAL)
    assert table.columns["recall"].tolist() == [share for _, share in sorted(expected)]
    assert em(table) == [1.0] * 50


def test_the_command_writes_the_report_and_prints_it(tmp_path, capsys):
    scored = record("b", "Rome", failure="retriever")  # the card says that the policy saw the failure
    run = write_run(tmp_path / "run", [record("a"), scored], card(failures={"mask": []}))
    assert main([str(run), "--resamples", "50", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "| EM | 0.500 [0.000, 1.000] |" in printed and "| model.name | base |" in printed
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["interval"]["resamples"] == 50 and report["card"]["model"]["name"] == "base"
    assert (tmp_path / "out" / "report.md").read_text().strip() == printed.strip()
    assert not list(run.glob("report*"))


def test_the_command_names_what_is_wrong_and_writes_nothing(tmp_path, capsys):
    run = write_run(tmp_path / "run", [{"id": "x"}])
    assert main([str(run)]) == 1
    assert "1 bad row" in capsys.readouterr().err and not list(run.glob("report*"))
    assert main([str(tmp_path / "nowhere")]) == 1
    assert "there is no such file or folder" in capsys.readouterr().err
    (run / "provenance.json").write_text('{"format": 1}')
    assert main([str(run)]) == 1
    assert "provenance.json: started: Field required" in capsys.readouterr().err


HOSTILE = ["$x_{1", "a|b\n| c", "<script>alert(1)</script>", "![x](http://x)", "_hidden", "\ud800\x1b[31m"]


def test_names_from_files_are_text_and_nothing_else(tmp_path):
    """As data source, term, status and kind of failure; in the page and in the pictures."""
    records = []
    for i, name in enumerate(HOSTILE):
        records.append(record(f"q{i}", source=name, status=name, rewards={name: 0.5}))
        records[-1]["failures"] = [{"kind": name, "turn": 0, "detail": name}]
    run = write_run(tmp_path / "run", records)
    assert main([str(run), "--resamples", "20"]) == 0
    page = Path(run / "report.md").read_text(encoding="utf-8")
    assert "<script" not in page and "![x]" not in page and "\x1b" not in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables if "EM" in line} == {len(HOSTILE) + 4}
