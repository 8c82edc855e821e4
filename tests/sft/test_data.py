"""`rag-r1 sft-data` on folders of records: what it writes, what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rag_r1.data.sft_rows import read_sft_rows
from rag_r1.data.sft_tokens import SftTokens
from rag_r1.protocols import load_protocol
from rag_r1.sft import data
from rag_r1.sft.files import write_samples
from rag_r1.sft.segment import KINDS
from tests.evaluation.made_traces import ANSWER, SEARCH, as_record, played, tokenizer, write_records

PUBLISHED = {
    "instruction": "Search with <search> query </search>. Question: Where is Ulm?\n",
    "input": "",
    "output": SEARCH,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> Path:
    """Ten traces that search, four that do not, and two with wrong answers, in two files."""
    folder = tmp_path_factory.mktemp("traces")
    lines = [[SEARCH, ANSWER]] * 10 + [[ANSWER]] * 4 + [[SEARCH, ANSWER]] * 2
    records = []
    for number, args in enumerate(lines):
        trajectory, _ = played(args, question=f"Which river? {number}", id=f"made/{number}")
        records.append(as_record(trajectory, "Rhine" if number > 13 else "Danube"))
    write_records(folder / "train" / "step_000000-1.jsonl", records[:8])
    write_records(folder / "train" / "step_000000-2.jsonl", records[8:])
    return folder


def make(model: Path, out: Path, *arguments: str | Path) -> int:
    return data.main(
        ["--model", str(model), "--out", str(out), "--max-context", "9999", *map(str, arguments)]
    )


def test_traces_become_rows_for_both_trainers_with_the_same_tokens(model, traces, tmp_path, capsys):
    assert make(model, tmp_path, "--traces", traces, "--validation", "0.2") == 0
    output = capsys.readouterr().out
    rows = [row for name in ("train", "validation") for row in read_sft_rows(tmp_path / f"{name}.parquet")]
    assert len(rows) == 24 and all(f"{kind}:" in output for kind in {row.kind for row in rows})
    info = json.loads((tmp_path / "llama_factory" / "dataset_info.json").read_text())
    samples = [
        sample
        for name in ("rag_r1_sft", "rag_r1_sft_validation")
        for sample in json.loads((tmp_path / "llama_factory" / info[name]["file_name"]).read_text())
    ]
    assert all(entry["formatting"] == "sharegpt" for entry in info.values())
    tokens = SftTokens(tokenizer(), load_protocol("rag_r1_mq"))
    for row, sample in zip(rows, samples, strict=True):
        turns = sample["conversations"]
        assert {turn["from"] for turn in turns[0::2]} <= {"human", "observation"}
        assert {turn["from"] for turn in turns[1::2]} == {"gpt"} and turns[0]["from"] == "human"
        ids = [tokenizer().encode(turn["value"], add_special_tokens=False) for turn in turns]
        assert sum(ids, []) == tokens(row).ids and len(ids[-1]) == sum(tokens(row).mask)


def test_the_summary_counts_everything_and_names_what_was_left_out(model, traces, tmp_path):
    assert make(model, tmp_path, "--traces", traces) == 0
    summary = json.loads((tmp_path / "sft_summary.json").read_text())
    assert summary["read"] == {"traces read": 16, "traces that search": 10, "traces that answer at once": 4}
    assert {name: counts["count"] for name, counts in summary["left_out"].items()} == {"wrong": 2}
    kinds = [counts["kinds"] for counts in summary["splits"].values()]
    assert {kind: sum(count.get(kind, 0) for count in kinds) for kind in KINDS} == {
        KINDS[0]: 4, KINDS[1]: 10, KINDS[2]: 0, KINDS[3]: 10,
    }  # fmt: skip
    dropped = [json.loads(line) for line in (tmp_path / "dropped.jsonl").read_text().splitlines()]
    assert [(entry["id"], entry["reason"]) for entry in dropped] == [
        ("made/14", "wrong"),
        ("made/15", "wrong"),
    ]
    assert summary["llama_factory"] == {"template": "empty", "mask_history": True}


def test_the_same_arguments_give_the_same_bytes(model, traces, tmp_path):
    for name in "ab":
        assert make(model, tmp_path / name, "--traces", traces) == 0
    for path in sorted((tmp_path / "a").rglob("*.*")):
        if path.is_file() and path.name != "settings.yaml":  # names the folder
            assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_whole_traces_one_format_and_no_validation(model, traces, tmp_path):
    assert make(model, tmp_path, "--traces", traces, "--validation", "0.2") == 0
    args = ["--layout", "whole", "--format", "verl", "--validation", "0", "--metric", "any"]
    assert make(model, tmp_path, "--traces", traces, *args) == 0
    rows = list(read_sft_rows(tmp_path / "train.parquet"))
    assert len(rows) == 16 and {row.kind for row in rows} == {"whole trace"}
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    names = ["dropped.jsonl", "settings.yaml", "sft_summary.json", "train.parquet"]
    assert left == names, "earlier files are gone"


def test_an_error_leaves_all_files_of_an_earlier_run(model, traces, tmp_path):
    assert make(model, tmp_path, "--traces", traces, "--validation", "0.2") == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    [row, *_] = read_sft_rows(tmp_path / "train.parquet")
    tokens = SftTokens(tokenizer(), load_protocol("rag_r1_mq"))
    with pytest.raises(AttributeError):
        write_samples(tmp_path, ([row], ["no row"]), tokens, "both")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_published_samples_are_read_beside_traces(model, traces, tmp_path):
    (tmp_path / "sq.json").write_text(json.dumps([PUBLISHED]))
    args = ["--traces", traces, "--published", tmp_path / "sq.json", "--validation", "0"]
    assert make(model, tmp_path / "out", *args) == 0
    rows = list(read_sft_rows(tmp_path / "out" / "train.parquet"))
    assert rows[-1].id == "sq.json/1" and rows[-1].question == "Where is Ulm?"


def test_bad_rows_are_counted_and_named_and_nothing_is_written(model, traces, tmp_path, capsys):
    whole = (traces / "train" / "step_000000-1.jsonl").read_text()
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{\n[]\n" + '{"id": "x"}\n' + whole)
    (tmp_path / "sq.json").write_text(json.dumps([3, PUBLISHED]))
    args = ["--traces", broken, "--published", tmp_path / "sq.json"]
    assert make(model, tmp_path / "out", *args) == 1
    output = capsys.readouterr().err
    assert "4 bad rows" in output and "broken.jsonl, line 1" in output and "line 2" in output
    assert "'x'" in output and "sq.json, row 1" in output and "--skip-bad-rows" in output
    assert not (tmp_path / "out").exists()
    assert make(model, tmp_path / "out", *args, "--skip-bad-rows") == 0
    assert "left out: 4 bad rows" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "sft_summary.json").read_text())["bad_rows"] == 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--traces", "nowhere"], "nowhere"),
        (["--published", "nowhere.json"], "nowhere.json"),
        (["--protocol", "no_such"], "no_such"),
        (["--prompt", "nowhere.txt"], "nowhere.txt"),
        (["--protocol", "rag_r1_sq"], "made in another protocol: give it as --protocol"),
        (["--max-context", "1"], "too_long"),
    ],
)
def test_what_cannot_be_done_is_named(model, traces, tmp_path, capsys, arguments, named):
    args = arguments if arguments[0] in ("--traces", "--published") else ["--traces", traces, *arguments]
    assert make(model, tmp_path / "out", *args) == 1
    assert named in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_file_without_any_trace_is_named_with_its_first_line(model, tmp_path, capsys):
    (tmp_path / "picture.jsonl").write_bytes(b"\x89PNG\xff\n")
    assert make(model, tmp_path / "out", "--traces", tmp_path / "picture.jsonl", "--check-only") == 1
    assert "picture.jsonl, line 1: " in capsys.readouterr().err


def test_a_model_without_a_tokenizer_is_named(traces, tmp_path, capsys):
    assert make(tmp_path, tmp_path / "out", "--traces", traces) == 1
    assert f"--model {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [[], ["--published", "a.json", "--layout", "whole"], ["--traces", "a", "--thought-only", "2"],
     ["--traces", "a", "--max-target", "0"]],
)  # fmt: skip
def test_wrong_arguments_end_the_command(model, tmp_path, arguments):
    with pytest.raises(SystemExit) as ended:
        make(model, tmp_path / "out", *arguments)
    assert ended.value.code == 2


def test_examples_keep_control_characters_off_the_terminal(model, tmp_path, capsys):
    trajectory, _ = played(["<think> \x1b[31m </think>\n<answer> Danube </answer>"])
    write_records(tmp_path / "t.jsonl", [as_record(trajectory, "Danube") | {"id": "\x1b[32m"}])
    assert make(model, tmp_path / "out", "--traces", tmp_path / "t.jsonl") == 0
    output = capsys.readouterr().out
    assert r"\x1b[31m" in output and "\x1b" not in output


def test_the_check_finds_that_no_sample_is_left_and_writes_nothing(model, traces, tmp_path, capsys):
    assert make(model, tmp_path / "out", "--traces", traces, "--check-only") == 0
    assert "24 samples" in capsys.readouterr().out
    for words in (["--protocol", "search_r1"], ["--max-target", "1"]):
        assert make(model, tmp_path / "out", "--traces", traces, "--check-only", *words) == 1
        assert "no sample is left" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert make(model, tmp_path / "out", "--traces", traces, "--traces", traces) == 1
    assert "is given twice" in capsys.readouterr().err
