"""`rag-r1 probe-passages`: the passages that a validation's probes show, found in one reading of a corpus."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rag_r1.cli import main as cli
from rag_r1.corpus.reader import Corpus
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.evaluation.probes.collect import find_passages
from rag_r1.io.errors import DataError
from rag_r1.probes.passages import read_passages

ROOT = Path(__file__).parents[3]
CORPUS = [{"id": str(i), "contents": f'"Page {i // 2}"\ntext {i}'} for i in range(40)]
ROW = QuestionRow("Which?", ("x",), id="q", split="test", protocol="rag_r1_mq")


def row_of(number: int, *titles: str) -> QuestionRow:
    return replace(ROW, id=f"q{number}", metadata={"supporting_titles": list(titles)})


@pytest.fixture
def run(tmp_path, capsys):
    """run(*arguments): status, what was printed, the error. `bad`: a first row of the corpus."""
    rows = [row_of(1, "Page 3", "page_5"), row_of(2, "Page 5", "Nowhere"), row_of(3)]
    write_rows(tmp_path / "val.parquet", rows)

    def call(*arguments: object, bad: str = "", out: str = "passages.json") -> tuple[int, str, str]:
        lines = "".join(json.dumps(row) + "\n" for row in CORPUS)
        if not (tmp_path / "corpus.jsonl").exists():
            (tmp_path / "corpus.jsonl").write_text(bad + lines)
        files = {"--data": "val.parquet", "--corpus": "corpus.jsonl", "--out": out}
        words = [str(word) for flag, name in files.items() for word in (flag, tmp_path / name)]
        status = cli(["probe-passages", *words, "--no-progress", *map(str, arguments)])
        return status, *capsys.readouterr()

    return call


def test_the_file_has_what_gold_and_random_show(run, tmp_path):
    status, printed, _ = run("--random", 15, "--seed", 2)
    assert status == 0
    assert printed.splitlines() == [
        "questions that name their gold passages: 2 of 3",
        "all of them found for: 1",
        "random passages: 15",
        f"passages: {tmp_path / 'passages.json'}",
    ]
    passages = read_passages(tmp_path / "passages.json")
    gold = passages.gold_passages(GoldEvidence.of({"supporting_titles": ["Page 3", "Page 5"]}), [])
    assert [passage.id for passage in gold] == ["6", "10", "7", "11"]
    assert len(passages.random) == 15
    wanted = [
        GoldEvidence.of(row_of(0, "Page 3", "Page 5").metadata),
        GoldEvidence(titles=frozenset({"nowhere"})),
    ]
    of_card = tmp_path / "of_card.json"
    find_passages(
        Corpus([tmp_path / "corpus.jsonl"]), wanted, of_card, sample_size=15, seed=2, progress=False
    )
    assert of_card.read_bytes() == (tmp_path / "passages.json").read_bytes(), "as a card finds them"


def test_the_random_passages_depend_on_the_seed_and_a_second_run_changes_nothing(run, tmp_path):
    pools = []
    for seed in (0, 0, 1):
        before = (tmp_path / "passages.json").read_bytes() if pools else b""
        assert run("--random", 5, "--seed", seed)[0] == 0
        pools.append(read_passages(tmp_path / "passages.json").random)
        if len(pools) == 2:
            assert (tmp_path / "passages.json").read_bytes() == before
    assert pools[0] == pools[1] != pools[2]


def test_a_bad_row_of_the_corpus_is_refused_unless_it_is_left_out(run, tmp_path):
    status, _, error = run(bad="{\n")
    assert status == 1 and "corpus.jsonl, line 1: not JSON" in error and "--skip-bad-rows" in error
    with pytest.raises(DataError):
        read_passages(tmp_path / "passages.json")
    status, printed, error = run("--skip-bad-rows")
    assert status == 0 and "random passages: 40" in printed
    assert error.splitlines()[0] == "left out: 1 bad row" and "line 1: not JSON" in error
    assert len(read_passages(tmp_path / "passages.json").random) == 40


def test_a_bad_row_of_the_questions_is_refused_before_the_corpus_is_read(run, tmp_path):
    write_rows(tmp_path / "val.parquet", [row_of(1, "Page 3"), replace(ROW, golds=())])
    status, _, error = run()
    assert status == 1 and "nothing was written" in error and "val.parquet, row 2" in error
    assert not (tmp_path / "passages.json").exists()
    status, printed, error = run("--skip-bad-rows")
    assert status == 0 and "1 of 1" in printed and "val.parquet, row 2" in error


@pytest.mark.parametrize("name", ["missing.jsonl", "corpus.txt"])
def test_a_corpus_that_cannot_be_read_is_named(run, name, tmp_path):
    status, _, error = run("--corpus", tmp_path / name)
    assert status == 1 and name in error


def test_passages_are_written_to_json_only(run, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(out="passages.parquet")
    assert "must end in .json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "message"), [("q.json", "also a file that is read"), ("manifest.json", "not written by `rag-r1")]
)
def test_a_file_that_is_something_else_is_not_overwritten(run, out, message, tmp_path):
    (tmp_path / out).write_text("[]")
    status, _, error = run("--data", tmp_path / "q.json", out=out)
    assert status == 1 and message in error and (tmp_path / out).read_text() == "[]"


@pytest.mark.slow
def test_the_command_goes_on_after_sigkill_and_finds_the_same(tmp_path):
    rows = 60_000
    with (tmp_path / "corpus.jsonl").open("w") as file:
        file.writelines(f'{{"id": "{i}", "contents": "Page {i % 1000}\\ntext {i}"}}\n' for i in range(rows))
    write_rows(tmp_path / "val.parquet", [row_of(1, "Page 3", "Page 999")])
    program = (
        "import sys; from pathlib import Path\n"
        "from rag_r1.evaluation.probes.command import PassagesArguments, check_start, gather\n"
        "folder = Path(sys.argv[1])\n"
        "args = PassagesArguments(questions=[folder / 'val.parquet'], corpus=[folder / 'corpus.jsonl'],\n"
        "                         out=folder / sys.argv[2], random=50, no_progress=True)\n"
        "print(gather(args, check_start(args), save_interval=2000)[0])\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    process = subprocess.Popen([*command, "killed.json"], cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (tmp_path / "killed.json").exists():
        time.sleep(0.005)
    process.kill()
    process.wait()
    before = json.loads((tmp_path / "killed.json").read_text())
    assert not before["done"] and 0 < before["place"][2] < rows
    for name in ("killed.json", "whole.json"):
        subprocess.run([*command, name], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=280)
    assert (tmp_path / "killed.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert len(read_passages(tmp_path / "killed.json").by_title["page 999"]) == 50
