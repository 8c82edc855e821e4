"""One rule for rows that cannot be used: counted, named, refused, or left out on request. Everywhere."""

from __future__ import annotations

import json

import pytest

import rag_r1.data.files.bad_rows
import retrieval_server.folder.bad_rows
from data_process.command import main as qa_main
from data_process.r1_searcher import main as r1_main
from data_process.split_kilt_to_100 import main as kilt_main
from retrieval_server.build_index import main as build_main

GOOD = {
    "question": "Who?",
    "answer": "Ada",
    "id": "good",
    "contents": "text",
    "wikipedia_title": "Ulm",
    "text": ["A town."],
    "rollouts": 14,
}
N_BAD = 7


@pytest.fixture
def files(tmp_path):
    """Rows that every script can use, and seven that none can."""
    lines = [json.dumps(GOOD), *(f'["bad {i}"]' for i in range(N_BAD))]
    (tmp_path / "bad.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "good.jsonl").write_text(json.dumps(GOOD) + "\n")
    return tmp_path


def questions(folder, more):
    arguments = ["--train", str(folder / "bad.jsonl"), "--out", str(folder / "out"), *more]
    return qa_main("", "rag_r1_sq", "made", arguments=arguments), folder / "out"


def published(folder, more):
    arguments = ["--stage", "1", "--train", str(folder / "bad.jsonl"), "--out", str(folder / "out"), *more]
    return r1_main(arguments), folder / "out"


def difficulties(folder, more):
    arguments = ["--hotpotqa", str(folder / "good.jsonl"), "--difficulty", str(folder / "bad.jsonl")]
    return r1_main(["--stage", "1", *arguments, "--out", str(folder / "out"), *more]), folder / "out"


def kilt(folder, more):
    out = folder / "passages.jsonl"
    return kilt_main(["--input", str(folder / "bad.jsonl"), "--out", str(out), *more]), out


def corpus(folder, more):
    arguments = ["--corpus", str(folder / "bad.jsonl"), "--backend", "bm25"]
    return build_main([*arguments, "--out", str(folder / "index"), *more]), folder / "index"


EVERYWHERE = [questions, published, difficulties, kilt, corpus]


@pytest.mark.parametrize("script", EVERYWHERE)
def test_bad_rows_are_all_counted_the_first_five_named_and_nothing_is_written(script, files, capsys):
    status, out = script(files, [])
    output = capsys.readouterr().err
    assert status != 0 and not out.exists()
    error = next(line for line in output.splitlines() if line.startswith("error: "))
    assert f"{N_BAD} bad rows: " in error and "--skip-bad-rows" in error and "; and 2 more." in error
    for number in range(2, 7):  # the good row is the first
        assert f"bad.jsonl, line {number}: " in error or f"bad.jsonl, row {number}: " in error
    assert "line 7" not in error and "row 7" not in error


@pytest.mark.parametrize("script", EVERYWHERE)
def test_on_request_bad_rows_are_left_out_and_the_good_ones_used(script, files, capfd, caplog):
    status, out = script(files, ["--skip-bad-rows"])
    assert status == 0 and out.exists()
    output = "".join([*capfd.readouterr(), caplog.text])
    assert f"{N_BAD} bad rows" in output
    for number in range(2, 7):
        assert f"bad.jsonl, line {number}: " in output or f"bad.jsonl, row {number}: " in output


def test_kilt_refused_for_bad_lines_reads_a_repaired_file_and_skips_without_reading_again(files, capsys):
    assert kilt(files, [])[0] == 1
    (files / "bad.jsonl").write_text((files / "bad.jsonl").read_text().replace('["bad 3"]', '{"bad": 3}'))
    assert kilt(files, [])[0] == 1, "lines of the same length in their place are read anew"
    assert f"{N_BAD} bad rows" in capsys.readouterr().err
    assert kilt(files, ["--skip-bad-rows"])[0] == 0


def test_both_packages_refuse_in_the_same_words():
    refusals = []
    for module in (rag_r1.data.files.bad_rows, retrieval_server.folder.bad_rows):
        bad = module.BadRows()
        for number in range(module.NAMED + 2):
            bad.add(f"c.jsonl, line {number}", "not JSON")
        refusals.append(bad.refusal())
    assert refusals[0] == refusals[1]
    assert rag_r1.data.files.bad_rows.BadRows(1, ["x"]).refusal().startswith("1 bad row: x. ")
