"""One rule for rows that cannot be used: counted, named, refused, or left out on request. Everywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rag_r1.data.files.bad_rows
import retrieval_server.folder.bad_rows
from data_process.command import main as qa_main
from data_process.r1_searcher import main as r1_main
from data_process.split_kilt_to_100 import main as kilt_main
from retrieval_server.build_index import main as build_main

GOOD = {"question": "Who?", "answer": "Ada", "id": "good", "contents": "text", "rollouts": 14}
GOOD |= {"wikipedia_title": "Ulm", "text": ["A town."]}
N_BAD = 7


@pytest.fixture
def files(tmp_path):
    """Rows that every script can use, and seven that none can."""
    lines = [json.dumps(GOOD), *(f'["bad {i}"]' for i in range(N_BAD))]
    (tmp_path / "bad.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "good.jsonl").write_text(json.dumps(GOOD) + "\n")
    return tmp_path


def questions(arguments: list[str]) -> int:
    return qa_main("", "rag_r1_sq", "made", arguments=arguments)


#: Script, its flags, of which BAD and GOOD are files, and the name of what it writes.
SCRIPTS = {
    "questions": (questions, "--train BAD", "out"),
    "published": (r1_main, "--stage 1 --train BAD", "out"),
    "difficulties": (r1_main, "--stage 1 --hotpotqa GOOD --difficulty BAD", "out"),
    "kilt": (kilt_main, "--input BAD", "passages.jsonl"),
    "corpus": (build_main, "--backend bm25 --corpus BAD", "index"),
}


def run(name: str, folder: Path, *more: str) -> tuple[int, Path]:
    """A script's exit status, and what it writes."""
    main, flags, out = SCRIPTS[name]
    files = {"BAD": str(folder / "bad.jsonl"), "GOOD": str(folder / "good.jsonl")}
    words = [files.get(word, word) for word in flags.split()]
    return main([*words, "--out", str(folder / out), *more]), folder / out


@pytest.mark.parametrize("script", SCRIPTS)
def test_bad_rows_are_all_counted_the_first_five_named_and_nothing_is_written(script, files, capsys):
    status, out = run(script, files)
    output = capsys.readouterr().err
    assert status != 0 and not out.exists()
    error = next(line for line in output.splitlines() if line.startswith("error: "))
    assert f"{N_BAD} bad rows: " in error and "--skip-bad-rows" in error and "; and 2 more." in error
    assert re.findall(r"bad.jsonl, (?:line|row) (\d+): ", error) == ["2", "3", "4", "5", "6"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_on_request_bad_rows_are_left_out_and_the_good_ones_used(script, files, capfd, caplog):
    status, out = run(script, files, "--skip-bad-rows")
    assert status == 0 and out.exists()
    output = "".join([*capfd.readouterr(), caplog.text])
    assert f"{N_BAD} bad rows" in output
    assert set(re.findall(r"bad.jsonl, (?:line|row) (\d+): ", output)) >= {"2", "3", "4", "5", "6"}


def test_kilt_refused_for_bad_lines_reads_a_repaired_file_and_skips_without_reading_again(files, capsys):
    assert run("kilt", files)[0] == 1
    (files / "bad.jsonl").write_text((files / "bad.jsonl").read_text().replace('["bad 3"]', '{"bad": 3}'))
    assert run("kilt", files)[0] == 1, "lines of the same length in their place are read anew"
    assert f"{N_BAD} bad rows" in capsys.readouterr().err
    assert run("kilt", files, "--skip-bad-rows")[0] == 0


def test_both_packages_name_bad_rows_in_the_same_words():
    refusals = []
    for module in (rag_r1.data.files.bad_rows, retrieval_server.folder.bad_rows):
        bad = module.BadRows()
        for number in range(module.NAMED + 2):
            bad.add(f"c.jsonl, line {number}", "not JSON")
        refusals.append(bad.refusal().partition(" Repair them")[0])
    assert refusals[0] == refusals[1]
    assert rag_r1.data.files.bad_rows.BadRows(1, ["x"]).refusal().startswith("1 bad row: x. ")
