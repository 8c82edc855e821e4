"""`rag-r1 data` as it is run: what is written, what is reported, and what ends it."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from data_process.build import main
from rag_r1.protocols import load_protocol

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("RAG_R1_DATA") or ROOT.parent / "shared" / "data")
MQ = DATA / "rag_r1" / "hotpotqa_train_filter_mq"
real_data = pytest.mark.skipif(
    not MQ.is_dir(), reason="left out: RAG-R1's data is not here (set RAG_R1_DATA to its folder)"
)
rensa = pytest.mark.skipif(not find_spec("rensa"), reason="left out: needs the extra `data` (rensa)")


def write(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def question(text: str, answer: str = "x", **more: object) -> dict:
    return {"question": text, "golden_answers": [answer], **more}


def run(out: Path, *arguments: str | Path, near: str = "0") -> int:
    return main(["--out", str(out), "--near-duplicates", near, *map(str, arguments)])


def rows(out: Path, split: str) -> list[dict]:
    return pq.read_table(out / f"{split}.parquet").to_pylist()


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    titles = {
        "metadata": {"supporting_facts": {"title": ["T"], "sent_id": [0]}, "type": "bridge", "level": "hard"}
    }
    return {
        "hotpotqa": write(
            tmp_path / "h.jsonl", *(question(f"H{i}?", id=f"train_{i}", **titles) for i in range(6))
        ),
        "nq": write(
            tmp_path / "n.jsonl", *(question(f"N{i}?", id=f"train_{i}") for i in range(5)), question("h0")
        ),
        "dev": write(tmp_path / "d.jsonl", question("D0?", id="test_0"), question("N1?", "y", id="test_1")),
    }


def test_sources_are_merged_under_their_own_names_with_unique_ids_and_one_schema(tmp_path, files):
    out = tmp_path / "out"
    arguments = [
        "--train",
        f"hotpotqa={files['hotpotqa']}@4",
        "--train",
        f"nq={files['nq']}",
        "--overlap",
        "drop",
    ]
    assert run(out, *arguments, "--validation", f"bamboogle:bam={files['dev']}") == 0
    train, test = rows(out, "train"), rows(out, "test")
    assert Counter(row["data_source"] for row in train) == {
        "hotpotqa": 4,
        "nq": 4,  # of six: N1 is in the validation set, and h0 repeats H0
    }
    assert [row["data_source"] for row in test] == ["bam", "bam"]
    ids = [row["extra_info"]["id"] for row in train + test]
    assert len(set(ids)) == len(ids) and "nq/train/train_0" in ids and "bam/test/test_0" in ids
    for split, written in (("train", train), ("test", test)):
        assert [row["extra_info"]["index"] for row in written] == list(range(len(written)))
        assert {row["extra_info"]["split"] for row in written} == {split}
    hotpotqa = train[0]["extra_info"]
    assert (hotpotqa["supporting_titles"], hotpotqa["hops"], hotpotqa["level"]) == (["T"], 2, "hard")
    assert train[0]["prompt"] == load_protocol("rag_r1_mq").messages(hotpotqa["question"])
    assert pq.read_schema(out / "train.parquet") == pq.read_schema(out / "test.parquet")


def test_the_counts_add_up_and_are_written_down(tmp_path, files, capsys):
    arguments = ["--train", f"nq={files['nq']}@2", "--validation", f"nq={files['dev']}", "--overlap", "drop"]
    assert run(tmp_path / "out", *arguments) == 0
    summary = json.loads((tmp_path / "out" / "data_summary.json").read_text())
    assert summary["overlap"] == {"policy": "drop", "kept": 0}
    train = next(source for source in summary["sources"] if source["split"] == "train")
    keys = ("read", "malformed", "duplicates", "overlap_with_test", "not_drawn", "left_over", "written")
    assert [train[key] for key in keys] == [6, 0, 0, 1, 3, 0, 2]
    assert (
        "nq: 2 of 6 rows (0 duplicates removed, 1 removed that are in test, 3 not drawn"
        in capsys.readouterr().out
    )


def test_the_same_sources_and_seed_give_the_same_bytes(tmp_path, files):
    for name, seed in (("one", "0"), ("same", "0"), ("other", "1")):
        assert run(tmp_path / name, "--train", f"hotpotqa={files['hotpotqa']}@3", "--seed", seed) == 0
    one, same, other = ((tmp_path / name / "train.parquet").read_bytes() for name in ("one", "same", "other"))
    assert one == same != other


def test_overlap_ends_the_build_and_the_report_names_the_rows(tmp_path, files, capsys):
    arguments = ["--train", f"nq={files['nq']}", "--validation", f"nq={files['dev']}"]
    out = tmp_path / "out"
    assert run(out, *arguments) == 1
    output = capsys.readouterr().err
    assert (
        f"1 questions of train are also in the validation set ({out}/repeated_questions.jsonl names them)"
        in output
    )
    assert "--overlap drop" in output and "--overlap keep" in output
    assert sorted(path.name for path in out.iterdir()) == ["repeated_questions.jsonl"]
    [line] = lines(out / "repeated_questions.jsonl")
    assert line == {
        "split": "train",
        "outcome": "not removed: stands in the test set",
        "row": {
            "split": "train",
            "source": "nq",
            "file": files["nq"],
            "row": 2,
            "id": "train_1",
            "question": "N1?",
            "golden_answers": ["x"],
        },
        "first": {
            "split": "test",
            "source": "nq",
            "file": files["dev"],
            "row": 2,
            "id": "test_1",
            "question": "N1?",
            "golden_answers": ["y"],
        },
    }
    assert run(out, *arguments, "--overlap", "keep") == 0
    assert len(rows(out, "train")) == 6
    assert "note: 1 questions of train are also in the validation set" in capsys.readouterr().err


@real_data
def test_rag_r1s_own_split_shows_its_123_leaked_questions(tmp_path, capsys):
    train, validation = (f"questions:hotpotqa={MQ / name}_data.json" for name in ("train", "test"))
    out = tmp_path / "out"
    assert run(out, "--train", train, "--validation", validation) == 1
    assert "123 questions of train are also in the validation set" in capsys.readouterr().err
    leaks = [line for line in lines(out / "repeated_questions.jsonl") if "test set" in line["outcome"]]
    assert len({line["row"]["row"] for line in leaks}) == len(leaks) == 123


@real_data
@pytest.mark.slow
def test_rag_r1s_own_split_without_the_leaked_questions(tmp_path):
    train, validation = (f"questions:hotpotqa={MQ / name}_data.json" for name in ("train", "test"))
    out = tmp_path / "out"
    assert run(out, "--train", train, "--validation", validation, "--overlap", "drop") == 0
    assert (len(rows(out, "train")), len(rows(out, "test"))) == (6664 - 2 - 123, 351)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'[{"question": "A?", "golden_answers": ["x"]}, {"quest',
            "is not one: .* after element 1. It is broken or cut",
        ),
        (b'{"question": "A?", "golden_answers": ["x"]}\n{"question": "B', "row 2: not JSON"),
        (b'{"question": "A?", "golden_answers": ["x"]}\n{"question": "B?"}', "row 2: not of nq, which has"),
        (
            b'{"question": "A?", "golden_answers": ["x"]}\n{"question": 5, "golden_answers": ["x"]}',
            "row 2: `question`",
        ),
        (b'{"question": "A?", "golden_answers": "x"}', "row 1: `golden_answers` must be a list of texts"),
        (
            b'{"question": "A?", "answer": "x", "evidences": []}',
            "row 1: not of nq: it looks like 2wikimultihopqa",
        ),
        (b"", "it has no rows. Accepted are .json"),
    ],
)
def test_a_wrong_file_is_told_with_the_row_and_the_reason_and_nothing_is_written(
    tmp_path, capsys, content, message
):
    import re

    path = tmp_path / "q.json"
    path.write_bytes(content)
    assert run(tmp_path / "out", "--train", f"nq={path}") == 1
    output = capsys.readouterr().err
    assert str(path) in output and re.search(message, output)
    assert list((tmp_path / "out").iterdir()) == []


def test_bad_rows_are_counted_over_all_sources_and_left_out_if_wanted(tmp_path, files, capsys):
    bad = write(tmp_path / "bad.jsonl", question("A?"), {"question": "B?"}, question("", "x"))
    arguments = ["--train", f"nq={bad}", "--train", f"hotpotqa={files['hotpotqa']}"]
    assert run(tmp_path / "out", *arguments) == 1
    output = capsys.readouterr().err
    assert "2 bad rows: " in output and "bad.jsonl, row 2: " in output and "--skip-bad-rows" in output
    assert run(tmp_path / "out", *arguments, "--skip-bad-rows") == 0
    assert len(rows(tmp_path / "out", "train")) == 7
    assert "left out: 2 bad rows" in capsys.readouterr().err


def test_several_questions_in_a_row(tmp_path, files):
    mix = tmp_path / "mix.yaml"
    mix.write_text(f"train: [{{source: nq, file: {files['nq']}, join: 2, take: 2}}]")
    assert run(tmp_path / "out", "--mix", mix) == 0
    written = rows(tmp_path / "out", "train")
    assert [row["data_source"] for row in written] == ["nq_2", "nq_2"]
    for row in written:
        info = row["extra_info"]
        assert len(info["parts"]) == 2 and info["part_answers"] == [["x"], ["x"]]
        assert row["reward_model"]["ground_truth"]["target"] == ["x; x"]
    assert len({row["extra_info"]["id"] for row in written}) == 2
    counted = json.loads((tmp_path / "out" / "data_summary.json").read_text())["sources"][0]
    assert (counted["read"], counted["not_drawn"], counted["left_over"], counted["written"]) == (6, 2, 0, 2)


def test_rows_without_ids_or_with_the_same_id_have_ids_of_their_own(tmp_path):
    first = write(tmp_path / "1.jsonl", question("A?", id="1"), question("B?"), question("B?", "y"))
    second = write(tmp_path / "2.jsonl", question("C?", id="1"), question("D?", id="2"))
    assert run(tmp_path / "out", "--train", f"nq={first}", "--train", f"nq={second}") == 0
    ids = [row["extra_info"]["id"] for row in rows(tmp_path / "out", "train")]
    assert len(set(ids)) == 5 and "nq/train/2" in ids and "nq/train/1" not in ids


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to read: give --train SOURCE=FILE"),
        (["--train", "nq=missing.jsonl"], "cannot read missing.jsonl"),
        (["--train", "nq=missing.jsonl", "--protocol", "nope"], "unknown protocol 'nope'"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said(tmp_path, capsys, arguments, message):
    assert run(tmp_path / "out", *arguments) == 1
    assert message in capsys.readouterr().err


def test_a_source_of_which_nothing_is_left_is_an_error_and_old_files_stay(tmp_path, files, capsys):
    out = tmp_path / "out"
    arguments = ["--train", f"nq={files['nq']}", "--validation", f"nq={files['dev']}", "--overlap", "drop"]
    assert run(out, *arguments) == 0
    before = (out / "train.parquet").read_bytes()
    again = write(tmp_path / "again.jsonl", question("d0"))
    assert run(out, *arguments, "--train", f"nq={again}") == 1
    assert f"nothing is left of {again} for train.parquet" in capsys.readouterr().err
    assert (out / "train.parquet").read_bytes() == before
    assert run(out, *arguments[:2]) == 1
    assert "test.parquet is there from an earlier run" in capsys.readouterr().err


def test_what_a_killed_build_has_left_does_not_disturb_the_next_one(tmp_path, files):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".questions.sqlite").write_bytes(b"half a database")
    (out / "train.parquet.part").write_bytes(b"half a file")
    assert run(out, "--train", f"nq={files['nq']}") == 0
    assert sorted(path.name for path in out.iterdir()) == ["data_summary.json", "train.parquet"]
    assert len(rows(out, "train")) == 6


def test_a_wrong_similarity_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(tmp_path, "--train", "nq=x", near="2")
    assert "--near-duplicates: must be a number from 0 to 1, not '2'" in capsys.readouterr().err


def test_the_search_for_near_duplicates_names_its_extra_before_anything_is_read(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "rensa", None)
    assert run(tmp_path / "out", "--train", "nq=missing.jsonl", near="0.8") == 1
    assert "rag-r1[data]" in capsys.readouterr().err


@rensa
def test_near_duplicates_are_reported_and_kept(tmp_path, capsys):
    long = "Which river flows through the town in which the composer of the opera Fidelio was born?"
    train = write(
        tmp_path / "t.jsonl",
        question(long.replace("the town", "the small town")),
        question("Who wrote Emma?"),
    )
    validation = write(tmp_path / "v.jsonl", question(long))
    assert (
        run(tmp_path / "out", "--train", f"nq={train}", "--validation", f"nq={validation}", near="0.8") == 0
    )
    [line] = lines(tmp_path / "out" / "near_duplicates.jsonl")
    assert 0.8 <= line["similarity"] < 1 and line["across_splits"] is True
    assert (line["row"]["split"], line["row"]["row"], line["first"]["question"]) == ("train", 1, long)
    assert len(rows(tmp_path / "out", "train")) == 2
    assert (
        "1 questions that resemble another one, 1 of them one of the validation set"
        in capsys.readouterr().out
    )
    summary = json.loads((tmp_path / "out" / "data_summary.json").read_text())
    assert summary["near_duplicates"] == {"similarity": 0.8, "pairs": 1, "across_splits": 1}
