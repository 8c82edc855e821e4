"""Each command reports all that is wrong before its work, names file, key or row, and with --check-only ends
there. The commands that play episodes have the same in tests/rollouts/test_checks.py."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import socket
from pathlib import Path

import pytest

from rag_r1.cli import main
from rag_r1.options.out_folder import check_out
from tests.chaos.test_full_disk import files_of_at_most
from tests.evaluation.finished_runs import card, record, write_run
from tests.evaluation.made_traces import ANSWER, SEARCH, as_record, played, tokenizer, write_records
from tests.fakes.json_server import JsonStub
from tests.fakes.retriever import Retriever

DEAD, ALSO_DEAD = "http://127.0.0.1:9", "http://127.0.0.1:7"
_AGENT = "--protocol none --prompt none.txt --tokenizer ./none_t rag_r1.agent.max_trns=3"
_OF_AGENT = ["'none'", "none.txt", "./none_t", "rag_r1.agent.max_trns"]
#: The words of each command, and the problems that are planted in them. `{port}` is in use.
PLANTED = {
    "corpus check": (
        "--questions none.jsonl bad.jsonl --corpus none.tsv bad.jsonl --redirects none.txt --out file "
        f"--retriever-url {DEAD} --bm25-url {ALSO_DEAD}",
        [
            *("none.jsonl", "bad.jsonl, row 1", "none.tsv", "bad.jsonl, line 1", "none.txt", "--out file"),
            *(DEAD, ALSO_DEAD),
        ],
    ),
    "probe-passages": (
        "--questions none.jsonl bad.jsonl --corpus none.tsv bad.jsonl --out file/p.json",
        ["none.jsonl", "bad.jsonl, row 1", "none.tsv", "bad.jsonl, line 1", "--out file"],
    ),
    "data": (
        "--protocol none --prompt none.txt --train nq=none.json --train trivia --validation nq=bad.jsonl "
        "--mix mix.yaml --near-duplicates 0 --out file",
        ["'none'", "none.txt", "none.json", "--train trivia", "bad.jsonl: row 1", "entry 2", "--out file"],
    ),
    "passage-questions": (
        "--corpus late.jsonl --out file",
        ["late.jsonl, line 2", "--out file"],
    ),
    "questions": (
        f"--corpus late.jsonl --base-url {DEAD}/v1 --teacher-model m --protocol none "
        f"--prompt none.txt --retriever-url {ALSO_DEAD} --out file",
        ["late.jsonl, line 2", "'none'", "none.txt", DEAD, ALSO_DEAD, "--out file"],
    ),
    "sft-data": (
        "--traces none --traces bad.jsonl --published none.json --model ./none_m --protocol none "
        "--prompt none.txt --out file",
        ["none: there", "row 1", "none.json", "--model ./none_m", "'none'", "none.txt", "--out file"],
    ),
    "sft": (
        "--recipe rag_r1/sft/qwen_7b --data none model.pth=1 optim.lrr=1 model.path=./none_m "
        "trainer.default_local_dir=file data.protocol=none_p",
        ["model.pth", "optim.lrr", "./none_m", "--data none is not a", "trainer.default_local_dir", "none_p"],
    ),
    "stages": (
        "--recipe none --recipe grop --out file stage3:a=1 b",
        ["'none'", "'grop'", "stage3:a=1", "b is not key=value", "--out file"],
    ),
    "serve": (
        f"--model m --base-url {DEAD}/v1 --retriever-url {ALSO_DEAD} --port {{port}} --out file {_AGENT}",
        ["port {port}", "--out file", *_OF_AGENT, DEAD, ALSO_DEAD],
    ),
    "mcp": (
        f"--model m --base-url {DEAD}/v1 --retriever-url {ALSO_DEAD} --http {{port}} {_AGENT}",
        ["port {port}", *_OF_AGENT, DEAD, ALSO_DEAD],
    ),
    "chat": (
        f"--model m --base-url {DEAD}/v1 --documents notes --out file {_AGENT}",
        ["--out file", *_OF_AGENT, DEAD, "latin.txt"],
    ),
    "eval report": (
        "broken --answerable none.txt --supporting none.jsonl --out file",
        ["provenance.json: started", "line 1", "none.txt", "none.jsonl", "--out file"],
    ),
    "eval compare": (
        "none broken broken_too --out file",
        ["no run in none", "provenance.json: started", "broken: ", "broken_too: ", "--out file"],
    ),
    "documents": ("--folder notes --out file", ["latin.txt", "--out file"]),
    "model export-nf4": (
        "none --base ./none_m --out file",
        ["none is not a checkpoint", "--base ./none_m", "--out file"],
    ),
    "recipes copy": ("none file/copy", ["'none'", "file is a file"]),
    "view": (
        "none bad.jsonl --port {port}",
        ["none: there is no", "bad.jsonl: its first line", "port {port}"],
    ),
    "pipeline": (
        "--out file --base none --sft-set optim.lrr=1 --grpo-set data.sed=1",
        ["--out file", "--base none", "optim.lrr", "data.sed"],
    ),
    "retriever select": (
        "--candidates none --correctness bad.jsonl --relevance none.jsonl --out file/new",
        ["none cannot be read", "bad.jsonl", "none.jsonl", "--out file"],
    ),
    "retriever data": (
        f"--model m --base-url {DEAD}/v1 --judge-url {ALSO_DEAD}/v1 --judge-model j --questions none.jsonl "
        f"--trajectories none --out file {_AGENT}",
        ["--out file", *_OF_AGENT, "none.jsonl", DEAD, ALSO_DEAD, "--trajectories none"],
    ),
    "eval": (
        f"--model m --base-url {DEAD}/v1 --judge-url {ALSO_DEAD}/v1 --judge-model j --questions none.jsonl "
        f"--out file {_AGENT}",
        ["--out file", *_OF_AGENT, "none.jsonl", DEAD, ALSO_DEAD],
    ),
    "traces": (
        f"--teacher-model m --base-url {DEAD}/v1 --questions none.jsonl --out file {_AGENT}",
        ["--out file", *_OF_AGENT, "none.jsonl", DEAD],
    ),
    "iterate": ("--recipe none --out file", ["'none'", "--out file"]),
    "own": (
        f"notes --model ./none_m --teacher {DEAD}/v1 --teacher-model m --questions none.jsonl "
        "--test-questions bad.jsonl grpo.stepz=3 --out file",
        ["latin.txt", "./none_m", DEAD, "none.jsonl", "bad.jsonl", "grpo.stepz", "--out file"],
    ),
}
#: Of commands with flags that take a value: a wrong one, beside which the planted problems are reported too.
#: Every command refuses an unknown flag beside them, too.
WRONG_VALUES = {
    "corpus check": "--topk x",
    "probe-passages": "--random 0",
    "data": "--overlap some",
    "passage-questions": "--per-kind 0",
    "sft-data": "--max-context x",
    "sft": "--hours x",
    "serve": "--in-flight x",
    "mcp": "--in-flight 0",
    "chat": "--in-flight x",
    "eval report": "--step x",
    "eval compare": "--resamples 0",
    "pipeline": "--grpo-steps x",
    "retriever select": "--negatives x",
    "retriever data": "--candidates 0",
    "eval": "--limit x",
    "traces": "--samples 0",
    "iterate": "--rounds x",
    "own": "--per-kind x",
}
SLOW = {"sft": pytest.mark.slow, "pipeline": pytest.mark.slow}  # compose veRL's configuration


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """The working directory, with files of each kind that are right, and some that are wrong."""
    monkeypatch.chdir(tmp_path)
    written = {
        "questions.jsonl": {"question": "Who?", "golden_answers": ["she"]},
        "corpus.jsonl": {"id": "1", "contents": '"Paris"\nParis lies on the Seine.'},
        "bad.jsonl": {"query": "Who?"},
        "broken/records.jsonl": ["no record"],
        "broken/provenance.json": {"format": 1},
        "broken_too/records.jsonl": ["no record"],
    }
    for name, value in written.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value) + "\n")
    (tmp_path / "mix.yaml").write_text("train: [{source: nq, file: bad.jsonl}, {source: nq, n: 5}]")
    (tmp_path / "late.jsonl").write_text((tmp_path / "corpus.jsonl").read_text() + "no JSON\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "latin.txt").write_bytes("Käse".encode("latin-1"))
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)) * 30)
    (tmp_path / "file").touch()
    return tmp_path


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


@pytest.mark.parametrize("command", [pytest.param(name, marks=SLOW.get(name, ())) for name in PLANTED])
def test_all_planted_problems_are_reported_in_one_run(command, place, port, capsys):
    words, problems = PLANTED[command]
    before = sorted(place.rglob("*"))
    assert main([*command.split(), *shlex.split(words.format(port=port))]) == 1
    message = capsys.readouterr().err
    assert [problem for problem in problems if problem.format(port=port) not in message] == []
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("command", [pytest.param(name, marks=SLOW.get(name, ())) for name in PLANTED])
def test_wrong_and_unknown_flags_are_reported_beside_all_other_problems(command, place, port, capsys):
    words, problems = PLANTED[command]
    wrong = WRONG_VALUES.get(command, "")
    before = sorted(place.rglob("*"))
    words = [*command.split(), *shlex.split(f"{words.format(port=port)} {wrong} --none-such")]
    with pytest.raises(SystemExit) as ended:
        main(words)
    message = capsys.readouterr().err
    problems = [*problems, *wrong.split()[:1], "unrecognized arguments: --none-such"]
    assert ended.value.code == 2
    assert [problem for problem in problems if problem.format(port=port) not in message] == []
    assert sorted(place.rglob("*")) == before


#: Wrong questions, folder and search, beside which a flag is missing.
REST = f"--questions none.jsonl --out file --retriever-url {DEAD}"
NAMED = ["none.jsonl", "--out file", DEAD]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("corpus check --questions none.jsonl --corpus none.tsv", ["--out", "none.jsonl", "none.tsv"]),
        (f"eval {REST}", ["required: --model", *NAMED]),
        (f"eval groups {REST}", ["required: --model", *NAMED]),
        (f"eval modes {REST} --trained none", ["required: --model", "none is not a folder", *NAMED]),
        (f"retriever data {REST}", ["required: --model", *NAMED]),
        (f"filter {REST} --engine chat", ["required: --base-url, --model", *NAMED]),
        (f"traces {REST}", ["required: --base-url, --teacher-model", *NAMED]),
        (f"serve --out file --protocol no --retriever-url {DEAD}", ["give --model", "file", "'no'", DEAD]),
        (f"chat --out file --protocol no --retriever-url {DEAD}", ["give --url", "file", "'no'", DEAD]),
        (f"own none --teacher {DEAD}/v1", ["required: --out", "none does not exist", "policy.model", DEAD]),
    ],
)
def test_a_missing_flag_is_reported_beside_all_other_problems(words, named, place, capsys):
    with pytest.raises(SystemExit):
        main(words.split())
    message = capsys.readouterr().err
    assert f"{len(named)} problems:" in message and [name for name in named if name not in message] == []


def test_neither_a_tokenizer_nor_a_server_of_eval_hides_the_other(place, capsys):
    words = f"eval --model none --base-url {DEAD}/v1 --retriever-url {ALSO_DEAD} --questions questions.jsonl"
    assert main([*words.split(), "--out", "new"]) == 1
    message = capsys.readouterr().err
    assert "3 problems:" in message and "the tokenizer of --model none" in message
    assert DEAD in message and ALSO_DEAD in message


def test_neither_a_server_of_another_kind_nor_a_tokenizer_of_serve_hides_the_other(place, capsys):
    with JsonStub(lambda asked: {"hello": "world"}) as stub:
        words = f"serve --model none --base-url {stub.url} --retriever-url {DEAD} --out new --port 0"
        assert main([*words.split(), "--check-only"]) == 1
    message = capsys.readouterr().err
    assert "3 problems:" in message and "the tokenizer of --model none" in message
    assert f"{stub.url}/v1 answers with" in message and DEAD in message


def test_a_number_of_answers_that_contradicts_another_is_named_once_and_hides_nothing(place, capsys):
    words = f"questions --corpus none.tsv --out new --base-url {DEAD}/v1 --teacher-model m --right 4"
    with pytest.raises(SystemExit):
        main([*words.split(), "--retriever-url", ALSO_DEAD])
    message = capsys.readouterr().err
    assert "4 problems:" in message and "--right 4 is more than --samples 3" in message


def test_a_wrong_key_of_a_plan_hides_neither_the_teacher_nor_recipes(place, capsys):
    words = f"own notes --teacher {DEAD}/v1 --model none --out new --recipe gpro --sft-recipe nope"
    assert main([*words.split(), "questions.kind=x", f"reader.url={ALSO_DEAD}/v1"]) == 1
    message = capsys.readouterr().err
    named = ["questions.kind", f"no teacher answers at {DEAD}/v1", "'gpro'", "'nope'", ALSO_DEAD]
    assert [name for name in named if name not in message] == []


def test_a_wrong_key_of_the_search_does_not_hide_a_dead_one(place, capsys):
    words = f"eval --model none --questions questions.jsonl --out new --retriever-url {DEAD}"
    assert main([*words.split(), "rag_r1.retriever.topk=many"]) == 1
    message = capsys.readouterr().err
    assert "rag_r1.retriever.topk" in message and f"no retrieval server answers at {DEAD}" in message


def test_a_file_of_settings_that_cannot_be_used_does_not_hide_other_problems(place, capsys):
    (place / "bad.yaml").write_text("a: [")
    (place / "unknown.yaml").write_text("questoins: q.jsonl")
    with pytest.raises(SystemExit):
        main(["corpus", "check", "@bad.yaml", "@unknown.yaml", "--corpus", "none.tsv", "--out", "file"])
    message = capsys.readouterr().err
    assert "4 problems:" in message and "bad.yaml cannot be read" in message
    assert "questoins" in message and "none.tsv" in message and "--out file" in message


def test_a_contradiction_of_flags_does_not_hide_files_and_servers(place, capsys):
    words = f"filter --questions none.jsonl --out file --base-url {DEAD}/v1 --model m"
    with pytest.raises(SystemExit):
        main(words.split())
    message = capsys.readouterr().err
    assert "give --tokenizer" in message and "none.jsonl" in message and "--out file" in message
    assert f"{DEAD}/v1" in message


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("traces --teacher-model m --max-cost 3 --body {x", ["--price-in", "--body is not JSON"]),
        (f"eval --model m --judge-url {DEAD} --judge-model j --judge-body {{ --samples 2", ["JSON", "equal"]),
        ("chat --model m --ask '' --vllm-options x", ["--ask is empty", "leave out --vllm-options"]),
    ],
)
def test_one_contradiction_of_flags_does_not_hide_another(words, named, place, capsys):
    with pytest.raises(SystemExit):
        main(shlex.split(f"{words} --out file --base-url {DEAD}/v1 --retriever-url {DEAD}"))
    message = capsys.readouterr().err
    assert [name for name in [*named, "--out file", DEAD] if name not in message] == []


def test_a_recipe_that_is_not_there_does_not_hide_the_rows_and_the_corpus(place, capsys):
    with pytest.raises(SystemExit):
        main("retriever train --recipe none --rows none.jsonl --corpus none.tsv --out file".split())
    message = capsys.readouterr().err
    assert "4 problems:" in message and "no recipe 'none'" in message and "none.jsonl" in message


def test_a_teacher_without_the_name_of_its_model_is_one_problem(place, capsys):
    with pytest.raises(SystemExit):
        main(f"pipeline --out new --teacher-url {DEAD}/v1".split())
    message = capsys.readouterr().err
    assert "--teacher-model" in message and "problems" not in message


def test_runs_without_trajectories_are_named_by_eval_sigma(place, capsys):
    (place / "empty").mkdir()
    assert main("eval sigma empty bad.jsonl none".split()) == 1
    message = capsys.readouterr().err
    assert "empty has no trajectory records" in message and "none: there is no such" in message
    assert "bad.jsonl, line 1: " in message


def test_documents_that_the_demo_does_not_use_are_not_read(place, capsys):
    with pytest.raises(SystemExit):
        main("serve --demo --documents notes --out new --port 0".split())
    message = capsys.readouterr().err
    assert "--documents" in message and "latin.txt" not in message


def test_what_follows_from_a_wrong_flag_is_no_problem_of_its_own(place, port, capsys):
    with pytest.raises(SystemExit):
        main(shlex.split(f"view none.jsonl --port {port}0000000"))
    assert "2 problems" in capsys.readouterr().err


@pytest.fixture
def right(place) -> Path:
    """The same with runs, traces and a model."""
    for name in ("run", "other"):
        write_run(place / name, [record("a")], card())
    trajectory, _ = played([SEARCH, ANSWER])
    write_records(place / "traces" / "records.jsonl", [as_record(trajectory, "Danube")])
    tokenizer().save_pretrained(place / "model")
    (place / "notes" / "latin.txt").write_text("Paris lies on the Seine.")
    return place


@pytest.mark.parametrize(
    ("words", "summary"),
    [
        ("corpus check --questions questions.jsonl --corpus corpus.jsonl --out new", "1 questions"),
        ("corpus check --questions questions.jsonl --corpus corpus.jsonl --out n --bm25-url {url}", " n"),
        ("probe-passages --questions questions.jsonl --corpus corpus.jsonl --out new.json", "new.json"),
        ("data --train questions=questions.jsonl --validation nq --out new --near-duplicates 0", "2 sources"),
        ("passage-questions --corpus corpus.jsonl --out new", "new"),
        ("documents --folder notes --out new --no-progress", "1 passages"),
        ("sft-data --traces traces --model model --out new", "traces"),
        ("eval report run --out new", "1 episodes"),
        ("eval compare run other --out new", "2 runs share 1 questions"),
        ("recipes copy rag_r1/grpo new", "rag_r1/grpo would be copied to new.yaml"),
        ("mcp --retriever-url {url}", "search would be offered over stdio"),
    ],
)
def test_check_only_ends_after_the_checks_with_one_line_and_writes_nothing(words, summary, right, capsys):
    before = sorted(right.rglob("*"))
    with Retriever({"1": "Paris"}) as stub:
        assert main([*shlex.split(words.format(url=stub.url)), "--check-only"]) == 0
        assert len(stub.queries) == ("{url}" in words)
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("all checks passed: ") and summary in line
    assert sorted(right.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        "corpus check --questions questions.jsonl --corpus corpus.jsonl --out new "
        f"--retriever-url {DEAD} --bm25-url {ALSO_DEAD}",
        f"questions --corpus corpus.jsonl --base-url {DEAD}/v1 --teacher-model m --retriever-url {ALSO_DEAD} "
        "--out new",
        f"serve --model m --base-url {DEAD}/v1 --retriever-url {ALSO_DEAD} --out new --port 0",
        f"chat --model m --base-url {DEAD}/v1 --retriever-url {ALSO_DEAD} --out new",
        f"mcp --model m --base-url {DEAD}/v1 --retriever-url {ALSO_DEAD}",
    ],
)
def test_each_dead_server_is_one_sentence_with_its_address_and_the_command_that_starts_one(
    words, place, capsys
):
    assert main(shlex.split(words)) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    first, *faults = [line for line in lines if not line.startswith("reading corpus")]
    tokenizer = ["tokenizer of --model m" in fault for fault in faults]  # of a model without a --tokenizer
    assert sum(tokenizer) == ("--model m" in words)
    assert len(faults) == 2 + sum(tokenizer) and first == f"error: {len(faults)} problems:"
    for address in (DEAD, ALSO_DEAD):
        [fault] = [fault for fault in faults if address in fault]
        assert "start one with `" in fault and ", or correct --" in fault
    assert not (place / "new").exists()


def test_a_search_that_may_come_later_is_a_warning_to_mcp_clients_and_an_error_of_check_only(capsys):
    from rag_r1.serving.mcp.command import McpArguments, check_start

    args = McpArguments(retriever_url=DEAD)
    check_start(args)
    assert f"warning: no retrieval server answers at {DEAD}" in capsys.readouterr().err
    assert main(["mcp", *args.to_argv(), "--check-only"]) == 1


def test_mcp_refuses_another_server_in_place_of_the_search(capsys):
    with JsonStub(lambda asked: {"hello": "world"}) as stub:
        assert main(["mcp", "--retriever-url", stub.url]) == 1
    assert f"error: the search at {stub.url} does not work" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("probe-passages --questions questions.jsonl --corpus binary --out p.json", "binary: the name must"),
        ("probe-passages --questions questions.jsonl --corpus corpus.jsonl --out run", "must end in .json"),
        ("data --trian nq --out new", "did you mean --train?"),
        ("data @mix.yaml --out new", "mix.yaml: train"),
        ("data @binary.yaml", "binary.yaml cannot be read: No such file"),
        ("eval @none", "there is no file or run 'none'"),
        ("data @none/run --out new", "there is no file or run 'none/run'"),
        ("train @questions.jsonl", "must end in .yaml or .json"),
        ("data --train questions=notes --near-duplicates 0 --out new", "cannot read notes: Is a directory"),
        ("documents --folder file --out new", "file is a file: give the folder"),
        ("sft-data --traces traces --model notes --out new", "--model notes"),
        ("sft-data --traces traces --model none/none --out new", "`hf download none/none --local-dir DIR`"),
        ("sft-data --traces traces --model model --out checked", "is the folder of a run of `rag-r1 corpus"),
        (f"serve --model m --base-url {DEAD}/v1 --out checked", "checked is the folder of a run of `rag-r1"),
        ("eval report binary", "RUN binary is a file"),
        ("eval reprot run", "did you mean report?"),
        (
            f"chat --model m --base-url {DEAD}/v1 --prompt prompt.txt --out new",
            "rag_r1.prompt: prompt.txt: the prompt",
        ),
        ("eval none", "`rag-r1 runs FOLDER` lists the runs"),
        ("eval notes", "give the folder of one"),
        ("eval checked", "checked is the folder of a run of `rag-r1 corpus check`: give the folder of a"),
        ("serve @checked/settings.yaml --model m", "has the settings of a run of `rag-r1 corpus check`"),
        ("eval report none", "none: there is no such file or folder: correct the path"),
        ("eval compare run other --differs nothing", "the cards have no such key; they have"),
        (
            "eval groups --questions q --model m --out new --temperatures nan",
            "must be a number above 0",
        ),
        ("eval --limit 0 --model m --questions q --out new", "must be a whole number of at least 1, not '0'"),
        ("documents --folder broken_notes --out new --no-progress", "broken.pdf"),
        ("data --train questoins=questions.jsonl --out new", "did you mean questions?"),
        (
            "data --train questions=semicolons.csv --near-duplicates 0 --out new",
            "separate them with commas in",
        ),
        ("corpus check --questions semicolons.csv --corpus c --out new", "separate them with commas in"),
        ("data --mix bad.yaml --out new", "bad.yaml: while parsing"),
        ("data --mix bad.yaml --out new", "correct its YAML"),
        ("iterate --recipe bad.yaml --out new --check-only", "correct its YAML, or give another file"),
        (
            "data --train questions=questions.jsonl --prompt binary --out new",
            "convert it with `iconv -f LATIN1 -t UTF-8 FILE > NEW`",
        ),
        ("documents --folder wide --out new --no-progress", "a.txt: it holds null characters"),
        ("documents @twice.yaml --folder notes", "it has the key out twice (lines 1 and 2)"),
        ("train --recipe latin.yaml", "it is not text in UTF-8"),
        ("train --recipe list.yaml", "must have keys, `defaults:` first"),
        ("stages --recipe list.yaml --recipe none --out new", "must have keys, `defaults:` first"),
        (
            "eval --model m --questions questions.jsonl --out new --engine chat --card --corpus none.tsv "
            f"--base-url {DEAD}/v1 --retriever-url {DEAD}",
            "none.tsv: there is no such file",
        ),
        ("view run --host 192.0.2.1 --port 0", "choose another --host"),
        ("eval report run --answerable latin.yaml --out new", "it is not UTF-8 text, at byte 0"),
        ("eval report notes --step 3 --out new", "notes has no trajectory records: give a run's folder"),
        ("eval report run --step -3 --out new", "--step: must be a whole number of at least 0, not '-3'"),
        (
            "eval report notes --answerable no --supporting infinite.jsonl --out new",
            "infinite.jsonl, row 1: needs",
        ),
        (
            "probe-passages --questions questions.jsonl --corpus loop --out p.json",
            "loop: there is no such file",
        ),
        (
            "corpus check --questions q.jsonl --questions q.jsonl --corpus loop --out new",
            "q.jsonl is given twice",
        ),
        ("corpus check --questions q --corpus c.jsonl ./c.jsonl --out new", "c.jsonl is given twice"),
        (
            "corpus check --questions questions.jsonl --corpus c.jsonl --redirects bad.jsonl --out new",
            "bad.jsonl, line 1: not",
        ),
        ("eval groups notes --model m --questions q --out new", "give a folder with its flag"),
        ("data --train nq=questions.jsonl --validation nq=./questions.jsonl --out new", "the same questions"),
        ("eval --model m URLS --questions ./questions.jsonl", "questions.jsonl is given twice"),
        ("eval --model m URLS --questions loop", "loop: there is no such file"),
        ("eval --model '' URLS", "--model: must be"),
        ("eval none --questions none.jsonl --out new", "none.jsonl: there is no such file"),
        ("view pipe", "pipe: its first line"),
        ("view run --export questions.jsonl", "--export questions.jsonl exists"),
        (f"chat --url {DEAD} --ask ''", DEAD),
        (
            "corpus check --questions notes --corpus c --out new",
            "--questions notes: is a folder: give a file",
        ),
        (
            "corpus check --questions q --corpus c --out new --redirects no.tsv",
            "--redirects no.tsv: cannot be read (No such file or directory): give another file",
        ),
        ("documents --folder notes --out loop/new", "loop is a link to nothing"),
        ("documents --folder notes --out new --check-only=yes", "it takes no value: leave out 'yes'"),
        ("data --train questions=infinite.jsonl --near-duplicates 0 --out new", "not [inf]"),
        ("data --train questions=twice.jsonl.gz --near-duplicates 0 --out new", "is not text: give another"),
        ("data --train questions=questions.jsonl --protocol folder.yaml --out new", "give another file"),
        ("traces --teacher-model m URLS --body {x", "correct it, such as"),
        ("traces --teacher-model m URLS --body '{\"a\": NaN}'", "NaN is not a number of JSON"),
        ("traces --teacher-model m URLS corpus.jsonl", "repeat the flag for each file"),
        (
            'eval --model model --questions questions.jsonl --out new --vllm-options "--a \'1"',
            "correct the quotation",
        ),
        ("eval --model m --engine chat URLS --index notes", "notes/manifest.json cannot be read"),
        ("eval --model m --engine chat URLS --right-from 3 --term cover_em", "has values from 0 to 1"),
        ("eval sigma run --right-from 3", "--right-from 3: em has values from 0 to 1, so no answer"),
        ("eval --model m --engine chat URLS --vllm-options x", "runs already: leave out --vllm-options"),
        ("serve --model m --base-url http://h/v1 --out new --vllm-options x", "leave out --vllm-options"),
        ("eval --model m --questions q --out new --api-key-env A", "without a key: leave out --api-key-env"),
        ("eval --model m --engine chat URLS --judge-rpm 3", "there is no --judge-url: leave out --judge-rpm"),
        ("mcp --tokenizer model", "only the search is offered: leave out --tokenizer"),
        ("pipeline --out new --base model --base-steps 7", "pretrained already: leave out --base-steps"),
        (
            "eval --model m --engine chat URLS --answerable infinite.jsonl --supporting notes",
            "infinite.jsonl, row 1",
        ),
        ("eval --model m --engine chat URLS --answerable infinite.jsonl --supporting notes", "read notes"),
        ("filter --model m URLS --tokenizer listed", "(tokenizer_config.json: not a JSON object)"),
        ("filter --model m URLS --validation 1", "--validation: must be a number from 0 to below 1"),
        ("sft-data --traces wide.jsonl --model model --out new", "not UTF-8 but UTF-16: convert it"),
        ("recipes path questions.jsonl", "questions.jsonl is not a recipe"),
        ("recipes table --recipe rag_r1/grpo --size 7B,", "--size '': the sizes"),
        ("train --recipe demo/grpo --check-only --estimate", "--estimate: measures after the checks"),
        ("iterate --recipe demo/grpo --out new", "grpo.yaml is not a recipe for `rag-r1 iterate`"),
        ("train --recipe demo/grpo trainer.default_local_dir=checked", "dir: the folder checked is"),
        ("recipes show demo/grpo --composed rag_r1.tools=[{name:x}]", "rag_r1.tools: is a block of keys"),
        ("retriever data --model m URLS --candidates 9", "--negatives 15 needs at least --candidates 16"),
        ("passage-questions --corpus wide.jsonl --out new", "wide.jsonl is not UTF-8 but UTF-16: convert it"),
        ("passage-questions --corpus questions.jsonl --out new", "`title` and `text`: correct the file\n"),
        (
            "retriever train --rows questions.jsonl --corpus c --model m --out new",
            "is not a line of train.jsonl",
        ),
        (
            "retriever train --rows r --corpus c --model m --index notes --out new",
            "No such file or directory)",
        ),
        (
            "retriever train --rows r --corpus c --model torch --out new",
            "torch/pytorch_model.bin is not a file of",
        ),
        ("own notes --plan folder.yaml --out new", "folder.yaml cannot be read: Is a directory: give a file"),
        ("own notes --plan list.yaml --model none --out new", "must be a mapping"),
        ("own none --plan sections.yaml --model none_m --out new", "none does not exist"),
        (
            "own notes --model none_m index.encoder=none_e --out new",
            "index.encoder: none_e is not the folder",
        ),
    ],
)
def test_a_wrong_input_is_named_with_the_remedy(words, named, right, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (right / "bad.yaml").write_text("a: [")
    (right / "prompt.txt").write_text("a prompt without the question's place")
    (right / "semicolons.csv").write_text("question;answer\nWho?;Ada\n")
    (right / "wide").mkdir()
    (right / "wide" / "a.txt").write_bytes("Paris".encode("utf-16-le"))
    (right / "wide.jsonl").write_text('{"id": "1", "contents": "Paris"}\n', encoding="utf-16")
    (right / "twice.yaml").write_text("out: new\nout: other\n")
    (right / "list.yaml").write_text("- rag_r1/grpo\n")
    (right / "loop").symlink_to("loop")
    (right / "c.jsonl").write_text('{"id": "1", "contents": "Ulm"}')
    os.mkfifo(right / "pipe")
    (right / "folder.yaml").mkdir()
    (right / "sections.yaml").write_text("documents: [notes]\n")
    (right / "infinite.jsonl").write_text('{"question": "How many?", "golden_answers": [Infinity]}\n')
    (right / "twice.jsonl.gz").write_bytes(gzip.compress(gzip.compress(b"{}")))
    shutil.copytree(right / "model", right / "listed")
    (right / "listed" / "tokenizer_config.json").write_text("[1]")
    (right / "torch").mkdir()
    (right / "torch" / "pytorch_model.bin").write_text("x")
    words = words.replace("URLS", f"--base-url {DEAD}/v1 --questions questions.jsonl --out new")
    (right / "latin.yaml").write_bytes(bytes(range(128, 256)))
    (right / "broken_notes").mkdir()
    (right / "broken_notes" / "broken.pdf").write_text("%PDF-1.4 and no more")
    (right / "checked").mkdir()
    settings = "# rag-r1 corpus check @checked/settings.yaml --out X\nk: 1\n"
    (right / "checked" / "settings.yaml").write_text(settings)
    before = sorted(right.rglob("*"))
    try:
        status = main(shlex.split(words))
    except SystemExit as end:
        status = end.code
    message = capsys.readouterr().err
    assert status in (1, 2) and named in message and "Traceback" not in message
    assert sorted(right.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        "data --train questions=pipe --out new --near-duplicates 0",
        "data --mix pipe --out new",
        "data --train questions=questions.jsonl --prompt pipe --out new",
        "traces --questions questions.jsonl --teacher-model m --base-url {url} --prompt pipe --out new",
        "sft-data --traces pipe --model model --out new",
        "retriever select --correctness pipe --out new.jsonl",
        "eval sigma pipe",
        "data @pipe.yaml",
    ],
)
def test_a_pipe_into_which_nobody_writes_is_no_file_and_holds_no_command_up(words, right, capsys):
    for name in ("pipe", "pipe.yaml"):
        os.mkfifo(right / name)
    try:
        status = main(shlex.split(words.format(url=f"{DEAD}/v1")))
    except SystemExit as end:
        status = end.code
    assert status in (1, 2) and "not an ordinary file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("documents --folder= --out new", "--folder"),
        ("documents @empty.yaml --folder notes", "out"),
        ("corpus check --questions questions.jsonl --corpus '' --out new", "--corpus"),
        ("view ''", "PATH"),
        ("own notes --out=", "--out"),
        ("index build --corpus corpus.jsonl --backend bm25 --out=", "--out"),
    ],
)
def test_an_empty_path_is_not_the_folder_of_the_process(words, flag, right, capsys):
    (right / "empty.yaml").write_text("out: ''\n")
    with pytest.raises(SystemExit):
        main(shlex.split(words))
    assert f"{flag}: must be a path, not ''" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "documents --folder notes --out new --no-progress",
        "sft-data --traces traces --model model --out new --max-context 9999",
        "recipes copy rag_r1/grpo new.yaml",
    ],
)
def test_a_full_disk_is_named_with_the_file_and_the_remedy(words, right, capsys):
    with files_of_at_most(0):
        assert main(shlex.split(words)) == 1
    message = capsys.readouterr().err
    assert "new" in message and "make room on that disk" in message


def test_a_folder_of_the_system_in_which_nothing_can_be_made_is_named():
    with pytest.raises(ValueError, match="--out /proc/new: /proc cannot be written to"):
        check_out(Path("/proc/new"))


@pytest.mark.skipif(os.geteuid() == 0, reason="left out: root may write and read everything")
def test_a_folder_and_a_file_without_rights_are_named(place, capsys):
    (place / "closed").mkdir(0o500)
    (place / "bad.jsonl").chmod(0)
    words = "corpus check --questions questions.jsonl --corpus bad.jsonl --out closed/new"
    assert main(words.split()) == 1
    message = capsys.readouterr().err
    assert "closed cannot be written to" in message and "bad.jsonl: Permission denied" in message


@pytest.mark.parametrize(
    "words",
    [
        "traces --questions q.jsonl --teacher-model m",
        "serve --model m --engine chat --port 0",
        "questions --corpus corpus.jsonl --teacher-model m",
    ],
)
def test_a_model_server_that_answers_nothing_is_no_passed_check(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("q.jsonl").write_text(json.dumps({"question": "Who?", "golden_answers": ["she"]}))
    Path("corpus.jsonl").write_text(json.dumps({"id": "1", "contents": "Ulm"}))
    with JsonStub(lambda asked: (404, "{}")) as model, Retriever([]) as search:
        servers = ["--base-url", f"{model.url}/v1", "--retriever-url", search.url]
        assert main([*words.split(), *servers, "--out", "out", "--check-only"]) == 1
    said = capsys.readouterr()
    assert f"{model.url}/v1 answers with HTTP 404" in said.err and "passed" not in said.out


@pytest.mark.parametrize("words", ["traces --teacher-model m", "eval --model m --engine chat"])
def test_a_run_in_which_every_episode_has_failed_does_not_end_with_status_0(words, right, capsys):
    models = {"data": [{"id": "m"}]}
    with (
        JsonStub(lambda asked: models if asked.method == "GET" else (400, "no such key")) as stub,
        Retriever({"1": "Paris"}) as search,
    ):
        words += (
            f" --questions questions.jsonl --out new --base-url {stub.url}/v1 --retriever-url {search.url}"
        )
        assert main(words.split()) == 1 and "failed (the endpoint or a search)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command, words",
    [
        ("filter", "--questions out/train.parquet --base-url http://h/v1 --model m"),
        ("traces", "--questions out/traces.jsonl --base-url http://h/v1 --teacher-model m"),
        ("sft-data", "--traces out/dropped.jsonl --model m"),
        ("sft-data", "--published link.json --model m"),
        ("data", "--train questions=out/train.parquet"),
        ("passage-questions", "--corpus out/train.jsonl"),
    ],
)
def test_a_file_that_is_read_is_none_that_is_written(tmp_path, monkeypatch, capsys, command, words):
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("link.json").symlink_to("out/llama_factory/rag_r1_sft.json")
    with pytest.raises(SystemExit):
        main([command, *words.split(), "--out", "out", "--wrong-flag"])
    read = next(word for word in words.replace("questions=", "").split() if word.startswith(("out", "link")))
    assert f"--out out would replace {read}" in capsys.readouterr().err


def test_a_home_folder_of_no_user_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="--out ~nobody_here/x"):
        check_out(Path("~nobody_here/x"))
    Path("~here").mkdir()
    check_out(Path("~here/x"))


def test_data_of_no_run_are_not_replaced_by_one(tmp_path):
    (tmp_path / "train.parquet").touch()
    check_out(tmp_path, "rag-r1 filter", writes=["test.parquet"])
    with pytest.raises(ValueError, match="has train.parquet of no run of `rag-r1 filter`"):
        check_out(tmp_path, "rag-r1 filter", writes=["train.parquet", "test.parquet"])
    (tmp_path / "settings.yaml").write_text("# rag-r1 filter '@x'\n")
    check_out(tmp_path, "rag-r1 filter", writes=["train.parquet"])
