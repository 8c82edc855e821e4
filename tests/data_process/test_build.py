"""`rag-r1 data` as it is run: what is written, what is reported, and what ends it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from data_process.build import main
from rag_r1.data.rows import RowWriter
from rag_r1.protocols import load_protocol

from .conftest import DATA, needs_data, read_lines, read_split, read_summary, write_lines

MQ = DATA / "rag_r1" / "hotpotqa_train_filter_mq"
real_data = needs_data(MQ)
rensa = pytest.mark.skipif(not find_spec("rensa"), reason="left out: needs the extra `data` (rensa)")


def question(text: str, answer: str = "x", **more: object) -> dict:
    return {"question": text, "golden_answers": [answer], **more}


def run(out: Path, *arguments: str | Path, near: str = "0") -> int:
    return main(["--out", str(out), "--near-duplicates", near, *map(str, arguments)])


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    facts = {"supporting_facts": {"title": ["T"], "sent_id": [0]}, "type": "bridge", "level": "hard"}
    hotpotqa = [question(f"H{i}?", id=f"train_{i}", metadata=facts) for i in range(6)]
    nq = [*(question(f"N{i}?", id=f"train_{i}") for i in range(5)), question("h0")]
    dev = [question("D0?", id="test_0"), question("N1?", "y", id="test_1")]
    rows = {"hotpotqa": hotpotqa, "nq": nq, "dev": dev}
    return {name: write_lines(tmp_path / f"{name}.jsonl", *listed) for name, listed in rows.items()}


@pytest.fixture
def flags(files) -> list[str]:
    """Flags of a build, of whose six rows of train one is in the validation set."""
    return ["--train", f"nq={files['nq']}", "--validation", f"nq={files['dev']}"]


def test_sources_are_merged_under_their_own_names_with_unique_ids_and_one_schema(tmp_path, files):
    out = tmp_path / "out"
    train = ["--train", f"hotpotqa={files['hotpotqa']}@4", "--train", f"nq={files['nq']}"]
    assert run(out, *train, "--validation", f"bamboogle:bam={files['dev']}", "--overlap", "drop") == 0
    train, test = read_split(out, "train"), read_split(out, "test")
    # Four of nq's six: N1 is in the validation set, and h0 repeats H0.
    assert Counter(row["data_source"] for row in train) == {"hotpotqa": 4, "nq": 4}
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


def test_the_counts_add_up_and_are_written_down(tmp_path, flags, capsys):
    flags[1] += "@2"
    assert run(tmp_path / "out", *flags, "--overlap", "drop") == 0
    counts = read_summary(tmp_path / "out")
    assert counts["overlap"] == {"policy": "drop", "kept": 0}
    train = next(source for source in counts["sources"] if source["split"] == "train")
    keys = ("read", "malformed", "duplicates", "overlap_with_test", "not_drawn", "left_over", "written")
    assert [train[key] for key in keys] == [6, 0, 0, 1, 3, 0, 2]
    told = "nq: 2 of 6 rows (0 duplicates removed, 1 removed that are in test, 3 not drawn"
    assert told in capsys.readouterr().out


def test_the_same_sources_and_seed_give_the_same_bytes(tmp_path, files):
    written = []
    for name, seed in (("one", "0"), ("same", "0"), ("other", "1")):
        assert run(tmp_path / name, "--train", f"hotpotqa={files['hotpotqa']}@3", "--seed", seed) == 0
        written.append((tmp_path / name / "train.parquet").read_bytes())
    assert written[0] == written[1] != written[2]
    assert main([f"@{tmp_path / 'other' / 'settings.yaml'}", "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "train.parquet").read_bytes() == written[2]


def test_overlap_ends_the_build_and_the_report_names_the_rows(tmp_path, files, flags, capsys):
    out = tmp_path / "out"
    assert run(out, *flags) == 1
    output = capsys.readouterr().err
    assert f"1 questions of train are also in the validation set ({out}/repeated_questions.jsonl" in output
    assert "--overlap drop" in output and "--overlap keep" in output
    assert sorted(path.name for path in out.iterdir()) == ["repeated_questions.jsonl", "settings.yaml"]
    shared = {"source": "nq", "row": 2, "question": "N1?"}
    train = {"split": "train", "file": files["nq"], "id": "train_1", "golden_answers": ["x"]}
    test = {"split": "test", "file": files["dev"], "id": "test_1", "golden_answers": ["y"]}
    outcome = "not removed: stands in the test set"
    expected = {"split": "train", "outcome": outcome, "row": shared | train, "first": shared | test}
    assert read_lines(out / "repeated_questions.jsonl") == [expected]
    assert run(out, *flags, "--overlap", "keep") == 0
    assert len(read_split(out, "train")) == 6
    assert "note: 1 questions of train" in capsys.readouterr().err


@pytest.fixture
def leaking() -> list[str]:
    """Flags of RAG-R1's own split, which has questions of train in its validation set."""
    train, validation = (f"questions:hotpotqa={MQ / name}_data.json" for name in ("train", "test"))
    return ["--train", train, "--validation", validation]


@real_data
def test_rag_r1s_own_split_shows_its_123_leaked_questions(tmp_path, leaking, capsys):
    out = tmp_path / "out"
    assert run(out, *leaking) == 1
    assert "123 questions of train" in capsys.readouterr().err
    leaks = [line for line in read_lines(out / "repeated_questions.jsonl") if "test set" in line["outcome"]]
    assert len({line["row"]["row"] for line in leaks}) == len(leaks) == 123


@real_data
@pytest.mark.slow
def test_rag_r1s_own_split_without_the_leaked_questions(tmp_path, leaking):
    assert run(tmp_path, *leaking, "--overlap", "drop") == 0
    assert (len(read_split(tmp_path, "train")), len(read_split(tmp_path, "test"))) == (6664 - 2 - 123, 351)


GOOD = '{"question": "A?", "golden_answers": ["x"]}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f'[{GOOD}, {{"quest', "is not one: .* after element 1. It is broken or cut"),
        (GOOD + '\n{"question": "B', "row 2: not JSON"),
        (GOOD + '\n{"question": "B?"}', "row 2: not of nq, which has"),
        (GOOD + '\n{"question": 5, "golden_answers": ["x"]}', "row 2: `question`"),
        ('{"question": "A?", "golden_answers": "x"}', "row 1: `golden_answers` must be a list of texts"),
        (
            '{"question": "A?", "answer": "x", "evidences": []}',
            "row 1: not of nq: it looks like 2wikimultihopqa",
        ),
        ("", "it has no rows. Accepted are .json"),
        ('{"question": "A?"}\n{"question": "B?"}', "row 1: .*; row 2: "),
    ],
)
def test_a_wrong_file_is_told_with_the_row_and_the_reason_and_nothing_is_written(
    tmp_path, capsys, content, message
):
    path = tmp_path / "q.json"
    path.write_text(content)
    assert run(tmp_path / "out", "--train", f"nq={path}") == 1
    output = capsys.readouterr().err
    assert str(path) in output and re.search(message, output)
    assert not (tmp_path / "out").exists()


def test_bad_rows_are_counted_over_all_sources_and_left_out_if_wanted(tmp_path, files, capsys):
    bad = write_lines(tmp_path / "bad.jsonl", question("A?"), {"question": "B?"}, question("", "x"))
    arguments = ["--train", f"nq={bad}", "--train", f"hotpotqa={files['hotpotqa']}"]
    assert run(tmp_path / "out", *arguments) == 1
    output = capsys.readouterr().err
    assert "2 bad rows: " in output and "bad.jsonl, row 2: " in output and "--skip-bad-rows" in output
    assert run(tmp_path / "out", *arguments, "--skip-bad-rows") == 0
    assert len(read_split(tmp_path / "out", "train")) == 7
    assert "left out: 2 bad rows" in capsys.readouterr().err


def test_fewer_rows_than_were_asked_for_are_a_warning_with_the_flag(tmp_path, files, capsys):
    mix = tmp_path / "mix.yaml"
    mix.write_text(f"validation: [{{source: nq, file: {files['dev']}, take: 7}}]")
    flag = f"nq={files['nq']}@99"
    assert run(tmp_path / "out", "--train", flag, "--mix", str(mix), "--overlap", "keep") == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2 and f"--mix {mix}, validation, entry 1: 2 rows" in warnings[0]
    assert f"--train {flag}: 6 rows, although 99 were asked for" in warnings[1]


def test_several_questions_in_a_row(tmp_path, files):
    mix = tmp_path / "mix.yaml"
    mix.write_text(f"train: [{{source: nq, file: {files['nq']}, join: 2, take: 2}}]")
    assert run(tmp_path / "out", "--mix", mix) == 0
    written = read_split(tmp_path / "out", "train")
    assert [row["data_source"] for row in written] == ["nq_2", "nq_2"]
    for row in written:
        info = row["extra_info"]
        assert len(info["parts"]) == 2 and info["part_answers"] == [["x"], ["x"]]
        assert row["reward_model"]["ground_truth"]["target"] == ["x; x"]
    assert len({row["extra_info"]["id"] for row in written}) == 2
    counted = read_summary(tmp_path / "out")["sources"][0]
    assert (counted["read"], counted["not_drawn"], counted["left_over"], counted["written"]) == (6, 2, 0, 2)


def test_fewer_questions_than_are_joined_to_a_row_are_named_with_the_entry(tmp_path, files, capsys):
    mix = tmp_path / "mix.yaml"
    mix.write_text(f"train: [{{source: nq, file: {files['nq']}, join: 50}}]")
    assert run(tmp_path / "out", "--mix", mix) == 1
    assert f"--mix {mix}, train, entry 1: join is 50, but only 6" in capsys.readouterr().err


def test_a_file_that_is_cut_hides_no_bad_row_of_another(tmp_path, capsys):
    paths = [tmp_path / name for name in ("cut.json", "bad.jsonl")]
    paths[0].write_text(f'[{GOOD}, {{"quest')
    paths[1].write_text("\n".join([GOOD] * 2000 + ["{}"]))
    assert run(tmp_path / "out", "--train", f"nq={paths[0]}", "--train", f"nq:b={paths[1]}") == 1
    error = capsys.readouterr().err
    assert "cut.json begins" in error and "bad.jsonl, row 2001" in error
    paths.append(tmp_path / "wrong.jsonl")
    paths[2].write_text("{}\n")
    sources = [
        word for name, path in zip("abc", paths, strict=True) for word in ("--train", f"nq:{name}={path}")
    ]
    assert run(tmp_path / "out", *sources, "--check-only") == 1, "and a check reads all rows"
    error = capsys.readouterr().err
    assert "wrong.jsonl" in error and "cut.json begins" in error and "bad.jsonl, row 2001" in error


def test_rows_without_ids_or_with_the_same_id_have_ids_of_their_own_and_these_are_counted(tmp_path, capsys):
    first = write_lines(tmp_path / "1.jsonl", question("A?", id="1"), question("B?"), question("B?", "y"))
    second = write_lines(tmp_path / "2.jsonl", question("C?", id="1"), question("D?", id="2"))
    assert run(tmp_path / "out", "--train", f"nq={first}", "--train", f"nq={second}") == 0
    ids = [row["extra_info"]["id"] for row in read_split(tmp_path / "out", "train")]
    told = capsys.readouterr().err
    for file in (first, second):
        assert f"note: nq: rows with the id of another row: 1 ({file}, row 1); they got ids made of" in told
    counts = [source["rows_with_repeated_id"] for source in read_summary(tmp_path / "out")["sources"]]
    assert counts == [1, 1]
    assert len(set(ids)) == 5 and "nq/train/2" in ids and "nq/train/1" not in ids


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to read: give --train SOURCE=FILE"),
        (["--train", "nq=missing.jsonl"], "missing.jsonl"),
        (["--train", "my.jsonl@5"], "such as --train questions=my.jsonl, where SOURCE is nq"),
        (["--train", "nq=missing.jsonl", "--protocol", "nope"], "'nope'"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said(tmp_path, capsys, arguments, message):
    assert run(tmp_path / "out", *arguments) == 1
    assert message in capsys.readouterr().err


def test_a_source_of_which_nothing_is_left_is_an_error_and_old_files_stay(tmp_path, flags, capsys):
    out = tmp_path / "out"
    assert run(out, *flags, "--overlap", "drop") == 0
    before = (out / "train.parquet").read_bytes()
    again = write_lines(tmp_path / "again.jsonl", question("d0"))
    assert run(out, *flags, "--overlap", "drop", "--train", f"nq={again}") == 1
    assert f"nothing is left of {again} for train.parquet" in capsys.readouterr().err
    assert (out / "train.parquet").read_bytes() == before
    assert run(out, *flags[:2]) == 1
    assert f"{out}/test.parquet" in capsys.readouterr().err


def test_the_files_of_both_splits_are_replaced_or_none(tmp_path, flags, monkeypatch):
    assert run(out := tmp_path / "out", *flags, "--overlap", "drop") == 0
    before = (out / "train.parquet").read_bytes()
    monkeypatch.setattr(RowWriter, "_flush", Mock(side_effect=[None, OSError("no room for the second")]))
    assert run(out, *flags, "--overlap", "keep") == 1
    assert (out / "train.parquet").read_bytes() == before and not list(out.glob("*.part"))


def test_what_a_killed_build_has_left_does_not_disturb_the_next_one(tmp_path, files):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".questions.sqlite").write_bytes(b"half a database")
    (out / "train.parquet.part").write_bytes(b"half a file")
    assert run(out, "--train", f"nq={files['nq']}") == 0
    names = sorted(path.name for path in out.iterdir())
    assert names == ["data_summary.json", "settings.yaml", "train.parquet"]
    assert len(read_split(out, "train")) == 6


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
    similar = long.replace("the town", "the small town")
    train = write_lines(tmp_path / "t.jsonl", question(similar), question("Who wrote Emma?"))
    flags = [
        "--train",
        f"nq={train}",
        "--validation",
        f"nq={write_lines(tmp_path / 'v.jsonl', question(long))}",
    ]
    assert run(tmp_path / "out", *flags, near="0.8") == 0
    [line] = read_lines(tmp_path / "out" / "near_duplicates.jsonl")
    assert 0.8 <= line["similarity"] < 1 and line["across_splits"] is True
    assert (line["row"]["split"], line["row"]["row"], line["first"]["question"]) == ("train", 1, long)
    assert len(read_split(tmp_path / "out", "train")) == 2
    told = "1 questions that resemble another one, 1 of them one of the validation set"
    assert told in capsys.readouterr().out
    counts = {"similarity": 0.8, "pairs": 1, "across_splits": 1}
    assert read_summary(tmp_path / "out")["near_duplicates"] == counts
