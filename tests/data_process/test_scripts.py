"""The scripts as they are run, on made files and on RAG-R1's own."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_process.command import main
from rag_r1.protocols import load_protocol

from .conftest import COUNTS, DATA, ROOT, needs_data, read_split, read_summary, write_lines

real_data = needs_data(DATA / "rag_r1")


def run(script: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess:
    """A script in a process of its own, from a folder that is not the project's."""
    command = [sys.executable, str(ROOT / "data_process" / script), *map(str, arguments)]
    cwd = next((Path(a).parent for a in arguments if isinstance(a, Path)), ROOT)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False)


@pytest.fixture
def files(tmp_path):
    train = [{"question": f"T{i}?", "golden_answers": "x"} for i in (1, 2, 2, 3)]
    train.append({"question": "V1?", "answer": "y"})
    (tmp_path / "train.json").write_text(json.dumps(train))
    (tmp_path / "bad_row.json").write_text(json.dumps([*train, {"question": ""}]))
    validation = write_lines(
        tmp_path / "val.jsonl", {"id": "v", "question": "V1?", "golden_answers": ["y", "z"]}
    )
    return ["--train", str(tmp_path / "train.json"), "--validation", validation]


def convert(out: Path, *arguments: str) -> int:
    """Runs a script with defaults of its own, in this process."""
    return main("", "rag_r1_sq", "hotpotqa", arguments=["--out", str(out), *arguments])


@pytest.mark.slow
def test_sq_and_mq_differ_in_the_protocol_only(files, tmp_path):
    rows = {}
    for script, protocol in (("hotpotqa_search.py", "rag_r1_sq"), ("hotpotqa_search_mq.py", "rag_r1_mq")):
        out = tmp_path / protocol
        result = run(script, "--out", out, *files)
        assert result.returncode == 0, result.stderr
        rows[protocol] = read_split(out, "train") + read_split(out, "test")
        for row in rows[protocol]:
            assert row["extra_info"].pop("protocol") == protocol
            assert row.pop("prompt") == load_protocol(protocol).messages(row["extra_info"]["question"])
    assert rows["rag_r1_sq"] == rows["rag_r1_mq"]
    assert [row["data_source"] for row in rows["rag_r1_sq"]] == ["hotpotqa"] * 4


def test_what_was_left_out_is_told_and_written_down(files, tmp_path, capsys):
    files[1] = str(tmp_path / "bad_row.json")
    assert convert(tmp_path / "out", *files, "--skip-bad-rows") == 0
    printed = capsys.readouterr()
    told = "3 questions of 6 rows (1 duplicates removed, 1 removed that are in test, 1 malformed"
    assert told in printed.out
    assert "bad_row.json, row 6: `question` must be a text" in printed.err
    splits = read_summary(tmp_path / "out")["splits"]
    assert [splits["train"][key] for key in COUNTS] == [6, 1, 1, 1, 3]
    assert splits["test"]["written"] == 1


def test_rows_with_the_id_of_another_one_are_counted(tmp_path, capsys):
    same = [{"id": "1", "question": f"T{i}?", "answer": "x"} for i in (1, 2)]
    rows = [*same, {"id": "2", "question": "T3?", "answer": "x"}]
    assert convert(tmp_path / "out", "--train", write_lines(tmp_path / "train.jsonl", *rows)) == 0
    assert "rows with the id of another row: 2;" in capsys.readouterr().out
    assert read_summary(tmp_path / "out")["splits"]["train"]["rows_with_repeated_id"] == 2


def test_an_old_test_set_is_not_left_beside_new_rows_that_were_not_compared_with_it(files, tmp_path, capsys):
    out = tmp_path / "out"
    assert convert(out, *files) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert convert(out, *files[:2]) == 1
    output = capsys.readouterr().err
    assert f"{out / 'test.parquet'} is there from an earlier run" in output
    assert "Give --validation as well" in output
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / "test.parquet").unlink()
    assert convert(out, *files[:2]) == 0


def test_a_prompt_and_a_name_of_ones_own(files, tmp_path):
    (tmp_path / "prompt.txt").write_text("Sag mir: {question}")
    options = ["--out", tmp_path / "out", "--source-name", "mine", "--prompt", tmp_path / "prompt.txt"]
    assert run("qa_search.py", *options, *files).returncode == 0
    [row] = read_split(tmp_path / "out", "test")
    assert row["prompt"] == [{"role": "user", "content": "Sag mir: V1?"}]
    assert (row["data_source"], row["extra_info"]["id"]) == ("mine", "mine/test/v")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--protocol", "nope"], "unknown protocol 'nope': use one of"),
        (["--prompt", "{tmp}/no_place.txt"], "the prompt has no {question}"),
        (["--prompt", "{tmp}/missing.txt"], "missing.txt"),
        (["--prompt", "{tmp}/latin.txt"], "latin.txt: not UTF-8"),
        (["--source-name", "a/b"], "--source-name 'a/b'"),
        (["--train", "{tmp}/missing.json"], "cannot read {tmp}/missing.json"),
        (["--out", "{tmp}/no_place.txt"], "no_place.txt"),
    ],
)
def test_a_wrong_option_is_named(files, tmp_path, capsys, options, message):
    (tmp_path / "no_place.txt").write_text("no place")
    (tmp_path / "latin.txt").write_bytes(b"\xe9 {question}")
    filled = [option.format(tmp=tmp_path) for option in options]
    assert convert(tmp_path / "out", *files, *filled) == 1
    assert message.replace("{tmp}", str(tmp_path)) in capsys.readouterr().err


def test_all_wrong_options_are_reported_in_one_run(files, tmp_path, capsys):
    (tmp_path / "file").touch()
    wrong = ["--protocol", "nope", "--prompt", f"{tmp_path}/file", "--source-name", "a/b"]
    missing = ["--train", f"{tmp_path}/no_train.json", "--validation", f"{tmp_path}/no_test.json"]
    assert convert(tmp_path / "file", *missing, *wrong) == 1
    message = capsys.readouterr().err
    wanted = ("no_train.json", "no_test.json", "'nope'", "--prompt", "'a/b'", "--out")
    assert [word for word in wanted if word not in message] == [] and "6 problems" in message


def test_nothing_to_read_is_told_with_the_remedy(tmp_path, capsys):
    assert convert(tmp_path) == 1
    assert "give --train FILE and --validation FILE" in capsys.readouterr().err


@pytest.mark.slow
def test_without_a_network_the_remedy_is_told(tmp_path):
    pytest.importorskip("datasets")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    result = run("hotpotqa_search.py", "--out", tmp_path / "out", **offline)
    assert result.returncode == 1
    assert "cannot load RUC-NLPIR/FlashRAG_datasets (hotpotqa, train)" in result.stderr
    assert "--train FILE --validation FILE" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@real_data
@pytest.mark.parametrize(
    ("folder", "train", "duplicates", "overlap", "test"),
    [("hotpotqa_train_filter", 4770, 226, 0, 252), ("hotpotqa_train_filter_mq", 6664, 2, 123, 351)],
)
def test_rag_r1s_own_files_lose_their_duplicates_and_overlap(
    tmp_path, folder, train, duplicates, overlap, test
):
    source = DATA / "rag_r1" / folder
    files = ["--train", str(source / "train_data.json"), "--validation", str(source / "test_data.json")]
    assert convert(tmp_path, *files) == 0
    splits, written = read_summary(tmp_path)["splits"], train - duplicates - overlap
    assert [splits["train"][key] for key in COUNTS] == [train, 0, duplicates, overlap, written]
    assert [splits["test"][key] for key in COUNTS] == [test, 0, 0, 0, test]
    rows = read_split(tmp_path, "train") + read_split(tmp_path, "test")
    assert len({row["extra_info"]["id"] for row in rows}) == len(rows) == written + test
    assert len({row["extra_info"]["question"].casefold() for row in rows}) == len(rows)


@real_data
@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("qa/hotpotqa.jsonl", 500),
        ("raw_samples/nq_flashrag_20.jsonl", 20),
        ("raw_samples/hotpotqa_raw_distractor_20.json", 20),
        ("raw_samples/2wikimultihopqa_raw_20.json", 20),
    ],
)
def test_flashrag_and_raw_files_are_read(tmp_path, name, n):
    assert convert(tmp_path, "--validation", str(DATA / name)) == 0
    rows = read_split(tmp_path, "test")
    assert len(rows) == n and all(row["reward_model"]["ground_truth"]["target"] for row in rows)


def test_bad_rows_hide_no_broken_file_and_flags_of_the_hub_are_refused_with_files(tmp_path, capsys):
    bad = write_lines(tmp_path / "bad.jsonl", {"question": "a?", "answer": "b"}, {"question": ""})
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b'{"question": "a?", "answer": "b"}\n')[:-9])
    words = ["--train", bad, "--validation", str(cut), "--hub-config", "x", "--check-only"]
    assert convert(tmp_path / "out", *words) == 1
    error = capsys.readouterr().err
    for part in ("bad.jsonl, row 2", "cut.jsonl.gz is a broken gzip", "leave out --hub-config"):
        assert part in error
