"""The script for R1-Searcher's two stages, on made rows and on the real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_process.r1_searcher import main
from rag_r1.protocols import load_protocol

from .conftest import DATA, ROOT, needs_data, read_split, read_summary, write_lines

real_data = needs_data(DATA / "r1_searcher")


@pytest.fixture
def files(tmp_path):
    """Published rows, raw rows of both sources, their difficulties, and a validation set."""
    rows = {
        "published": [
            {"idx": 7, "question": "P1?", "answer": "x", "pred_anses": ["", "x"]},
            {"idx": 8, "question": "V?", "answer": "y", "gen_text_store": ""},
        ],
        "rollouts": [{"id": f"{name}{i}", "rollouts": 5 + 5 * i} for name in "hw" for i in range(6)],
        "validation": [{"question": "V?", "answer": "y"}, {"question": "h1?", "answer": "x"}],
    }
    for name in "hw":
        rows[name] = [
            {"_id": f"{name}{i}", "question": f"{name}{i}?", "answer": "x", "context": []} for i in range(6)
        ]
    return {name: write_lines(tmp_path / f"{name}.json", *listed) for name, listed in rows.items()}


@pytest.fixture
def raw(files) -> list[str]:
    """Flags of raw rows with their difficulties."""
    return ["--hotpotqa", files["h"], "--2wiki", files["w"], "--difficulty", files["rollouts"]]


def call(out: Path, *arguments: str) -> int:
    return main(["--out", str(out), *arguments])


def test_published_rows_become_verls_with_their_own_ids(files, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--stage", "1", "--train", files["published"], "--validation", files["validation"]]
    assert call(out, *arguments) == 0
    [row] = read_split(out)
    assert row["prompt"] == load_protocol("r1_searcher").messages("P1?")
    assert row["extra_info"]["id"] == "r1_searcher/train/7" and row["extra_info"]["protocol"] == "r1_searcher"
    output = capsys.readouterr()
    assert "1 questions of 2 rows (0 duplicates removed, 1 removed that are in test" in output.out
    assert "note: 1 of the 350 questions that stage 1 was published with" in output.err


def test_raw_rows_are_drawn_by_difficulty_and_what_is_missing_is_told(files, raw, tmp_path, capsys):
    out = tmp_path / "out"
    assert call(out, "--stage", "1", *raw, "--validation", files["validation"]) == 0
    # 10, 15 and 20 rollouts are medium; h1 (10 rollouts) stands in the validation set.
    assert {row["extra_info"]["question"] for row in read_split(out)} == {"h2?", "h3?", "w1?", "w2?", "w3?"}
    assert "hotpotqa medium: 2 of 200 questions" in capsys.readouterr().err
    summary = read_summary(out)
    counts = summary["splits"]["train"]
    assert (counts["read"], counts["written"], counts["overlap_with_test"]) == (6, 5, 1)
    [line] = (out / "repeated_questions.jsonl").read_text().splitlines()
    assert json.loads(line)["row"]["question"] == "h1?" and summary["raw_rows"] == {"hotpotqa": 6, "2wiki": 6}
    there = {"easy": 1, "medium": 3, "hard": 2}
    drawn = {"source": "2wiki", "class": "medium", "asked": 150, "taken": 3, "there": there}
    assert summary["drawn"][1] == drawn


def test_other_counts_take_the_place_of_the_published_ones(raw, tmp_path, capsys):
    out = tmp_path / "out"
    counts = ["hotpotqa.medium=1", "hotpotqa.hard=0", "2wiki.medium=0", "2wiki.hard=2"]
    assert call(out, "--stage", "2", *raw, *[part for c in counts for part in ("--count", c)]) == 0
    assert [(e["source"], e["class"], e["taken"]) for e in read_summary(out)["drawn"]] == [
        ("hotpotqa", "medium", 1),
        ("2wiki", "hard", 2),
    ]
    assert capsys.readouterr().err == ""


def test_without_difficulties_it_says_so(files, tmp_path, capsys):
    assert call(tmp_path / "out", "--stage", "1", "--hotpotqa", files["h"]) == 0
    output = capsys.readouterr().err
    assert "no --difficulty: drawn from all questions" in output
    assert "2wiki any: 0 of 150 questions" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --train"),
        (["--train", "{published}", "--hotpotqa", "{h}"], "give either --train"),
        (["--train", "{published}", "--count", "hotpotqa.medium=1"], "are for raw rows"),
        (["--hotpotqa", "{h}", "--count", "hotpot.medium=1"], "--count hotpot.medium=1: use SOURCE.CLASS=N"),
        (["--hotpotqa", "{h}", "--count", "hotpotqa.medium=x"], "--count hotpotqa.medium=x"),
        (["--hotpotqa", "{h}", "--difficulty", "{h}"], "line 1: needs `rollouts`"),
        (["--hotpotqa", "{h}", *["--count", "hotpotqa.medium=1"] * 2], "given twice"),
        (["--2wiki", "{w}", "--count", "2wiki.medium=0"], "nothing could be drawn"),
        (
            ["--2wiki", "{w}", *"--count 2wiki.medium=0 --count hotpotqa.medium=0".split()],
            "every --count is 0",
        ),
    ],
)
def test_a_wrong_option_is_named(files, tmp_path, capsys, arguments, message):
    assert call(tmp_path / "out", "--stage", "1", *[a.format(**files) for a in arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        (["--train", "none", "--validation", "no"], ["none:", "no:"]),
        (["--train", "none", "--hotpotqa", "no"], ["give either --train", "none:", "no:"]),
        (["--train", "none", "--count", "2wiki.hard=0"], ["are for raw rows", "none:"]),
        (["--2wiki", "none", "--difficulty", "no", "--count", "x"], ["none:", "read no:", "--count x:"]),
    ],
)
def test_wrong_files_and_counts_are_named_in_one_run(tmp_path, capsys, monkeypatch, arguments, problems):
    monkeypatch.chdir(tmp_path)
    assert call(tmp_path / "out", "--stage", "1", *arguments) == 1
    message = capsys.readouterr().err
    assert all(problem in message for problem in problems)
    with pytest.raises(SystemExit):
        call(tmp_path / "out", "--stage", "3", *arguments)
    message = capsys.readouterr().err
    assert all(problem in message for problem in ["--stage: must be 1 or 2", *problems])


def test_the_script_explains_itself_where_nothing_is_installed(tmp_path):
    command = [sys.executable, str(ROOT / "data_process" / "r1_searcher.py"), "--help"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
    flags = ("--stage", "--hotpotqa", "--2wiki", "--difficulty")
    for word in (*flags, "SOURCE.CLASS=N", "r1_searcher_instruct"):
        assert word in done.stdout


@real_data
@pytest.mark.parametrize(("stage", "published"), [(1, 350), (2, 8148)])
def test_the_published_rows_are_read_and_the_excerpt_is_told_from_the_whole(
    tmp_path, capsys, stage, published
):
    train = DATA / "r1_searcher" / f"stage_{stage}_first100.jsonl"
    validation = DATA / "qa" / "hotpotqa.jsonl"
    files = ["--train", str(train), "--validation", str(validation)]
    assert call(tmp_path, "--stage", str(stage), *files) == 0
    rows, counts = read_split(tmp_path), read_summary(tmp_path)["splits"]["train"]
    assert (counts["read"], counts["malformed"]) == (100, 0)
    assert len(rows) == counts["written"] == 100 - counts["duplicates"] - counts["overlap_with_test"]
    assert all(row["reward_model"]["ground_truth"]["target"] for row in rows)
    if len(rows) < published:
        assert f"{len(rows)} of the {published} questions" in capsys.readouterr().err


@real_data
def test_raw_hotpotqa_and_2wiki_rows_are_read_and_the_counts_they_cannot_meet_are_told(tmp_path, capsys):
    raw = DATA / "raw_samples"
    files = raw / "hotpotqa_raw_distractor_20.json", raw / "2wikimultihopqa_raw_20.json"
    assert call(tmp_path, "--stage", "2", "--hotpotqa", str(files[0]), "--2wiki", str(files[1])) == 0
    assert len(read_split(tmp_path)) == 40
    output = capsys.readouterr().err
    assert "hotpotqa any: 20 of 4561 questions" in output and "2wiki any: 20 of 3587 questions" in output


def test_swapped_files_bad_rows_and_wrong_counts_are_named_together(files, tmp_path, capsys):
    hotpotqa = {"question": "h?", "answer": "x", "supporting_facts": [], "level": "hard"}
    bad = [{"question": "w?", "answer": "x", "evidences": []}, {"question": ""}]
    paths = {
        "2wiki": write_lines(tmp_path / "h.json", hotpotqa),
        "hotpotqa": write_lines(tmp_path / "w.json", *bad),
    }
    words = [word for name, path in paths.items() for word in (f"--{name}", path)]
    words += [
        "--count",
        "hotpot.medium=3",
        "--count",
        "2wiki.hard=1",
        "--count",
        "2wiki.hard=2",
        "--check-only",
    ]
    assert call(tmp_path / "out", "--stage", "1", *words) == 1
    error = capsys.readouterr().err
    for part in ("--2wiki", "it looks like hotpotqa", "--hotpotqa", "it looks like 2wikimultihopqa"):
        assert part in error
    assert "w.json, row 2" in error and "hotpot.medium=3" in error and "hotpotqa or 2wiki" in error
    assert "2wiki.hard is given twice" in error


def test_the_folder_of_another_commands_run_is_refused(files, tmp_path, capsys):
    (tmp_path / "settings.yaml").write_text("# rag-r1 eval @settings.yaml\n")
    assert call(tmp_path, "--stage", "1", "--train", files["published"], "--check-only") == 1
    assert "a run of `rag-r1 eval`" in capsys.readouterr().err
