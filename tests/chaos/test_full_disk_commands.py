"""Commands on a disk that fills up: with whatever room there is, a command either ends well or says which
file did not fit and what to do, and leaves no part of a file. With more room, the same command goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rag_r1.cli import main as cli
from rag_r1.data.rows import write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import make_questions, make_world, to_row
from rag_r1.protocols import load_protocol
from tests.chaos.small_disk import Disk, small_disk
from tests.evaluation.finished_runs import record, write_run
from tests.fakes.scored_world import FEW, scored_world
from tests.fakes.scripted_vllm import Policy
from tests.serving.running_chat import QUESTION, policy_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")]
SIZE = 4 << 20
PASSAGES = (("p1", '"Rome"\nRome is a city.'), ("p2", '"Tiber"\nA river.'))


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", SIZE) as mounted:
        yield mounted


def goes_on_with_more_room(
    disk: Disk, capsys, command: Callable[[Path], int], rooms=(0, 1, 2, 4, 8, 16, 32, 64, 128, 512)
) -> None:
    """Run the command with ever more pages of room, until there is enough."""
    out, failed = disk.path / "out", 0
    for pages in rooms:
        disk.leave(pages * 4096)
        capsys.readouterr()
        status = command(out)
        said = capsys.readouterr().err
        assert not [path for path in disk.path.rglob("*") if path.suffix in (".part", ".new")]
        if status == 0:
            break
        failed += 1
        assert status == 1, said
        *outer, message = [line for line in said.splitlines() if line.startswith("error: ")]
        assert all(line.endswith(" failed:") for line in outer)  # of a command that it has run
        assert str(out) in message and "No space left on device" in message and "make room" in message, (
            message
        )
        assert "Traceback" not in said and "Errno" not in said
    assert status == 0 and failed, (status, failed)


@pytest.fixture(scope="module")
def rows():
    questions = make_questions(make_world(1, "test", people=150, places=40), 12, 1)
    return [
        to_row(question, index, "test", load_protocol("rag_r1_mq"))
        for index, question in enumerate(questions)
    ]


@pytest.fixture(scope="module")
def policy(rows):
    from transformers import AutoTokenizer

    golds = {row.question: row.golds[0] for row in rows}
    tokenizer = AutoTokenizer.from_pretrained(policy_path("rag_r1_mq"))
    with Policy(
        tokenizer, golds, lambda question, temperature, seed: seed % 3 == 0, searches=True, passages=PASSAGES
    ) as policy:
        yield policy


def asking(policy: Policy) -> list[object]:
    servers = ["--tokenizer", policy_path("rag_r1_mq"), "--retriever-url", policy.url, "--model", "policy"]
    return [*servers, "--in-flight", 4, "--retries", 0]


def test_documents(disk, capsys, tmp_path):
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text(f"Words of the page {number}. " * 100)
    goes_on_with_more_room(
        disk,
        capsys,
        lambda out: cli(["documents", "--folder", str(folder), "--out", str(out), "--no-progress"]),
    )
    assert len((disk.path / "out" / "corpus.jsonl").read_text().splitlines()) >= 20


def test_an_evaluation(disk, capsys, tmp_path, rows, policy):
    write_rows(tmp_path / "q.parquet", rows)
    words = ["eval", "--data", tmp_path / "q.parquet", "--base-url", f"{policy.url}/v1", *asking(policy)]
    goes_on_with_more_room(disk, capsys, lambda out: cli([*map(str, words), "--out", str(out)]))
    assert json.loads((disk.path / "out" / "report.json").read_text())["figures"]


def test_a_filter(disk, capsys, tmp_path, rows, policy):
    write_rows(tmp_path / "q.parquet", rows)
    words = ["filter", "--questions", tmp_path / "q.parquet", "--url", f"{policy.url}/v1", *asking(policy)]
    goes_on_with_more_room(disk, capsys, lambda out: cli([*map(str, words), "--out", str(out)]))


def test_a_data_set(disk, capsys, tmp_path):
    lines = [
        {"id": f"q{n}", "question": f"Who is the {n}th of them? " * 5, "answer": "x"} for n in range(200)
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["data", "--train", f"questions={tmp_path / 'q.jsonl'}", "--near-duplicates", "0"]
    goes_on_with_more_room(disk, capsys, lambda out: cli([*words, "--out", str(out)]))


def test_a_check_of_a_corpus(disk, capsys, tmp_path):
    (tmp_path / "c.jsonl").write_text('{"id": "1", "contents": "Ulm lies on the Danube."}\n')
    (tmp_path / "q.jsonl").write_text(
        '{"id": "q", "question": "Where is Ulm?", "golden_answers": ["Danube"]}\n'
    )
    words = ["corpus", "check", "--data", tmp_path / "q.jsonl", "--corpus", tmp_path / "c.jsonl"]
    words += ["--no-progress"]
    goes_on_with_more_room(disk, capsys, lambda out: cli([*map(str, words), "--out", str(out)]))


def test_a_report_and_a_comparison_with_their_pictures(disk, capsys, tmp_path):
    runs = [
        write_run(tmp_path / name, [record(f"q{n}", answer, seconds=n) for n in range(20)])
        for name, answer in (("a", "Paris"), ("b", "Rome"))
    ]
    words = [["eval", "report", runs[0]], ["eval", "compare", *runs, "--differs", "card"]]
    for command in words:
        goes_on_with_more_room(disk, capsys, lambda out, c=command: cli([*map(str, c), "--out", str(out)]))
        (disk.path / "filler").unlink()
    assert {"report.json", "compare.json"} <= {path.name for path in (disk.path / "out").iterdir()}


def test_data_of_a_retriever(disk, capsys, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy_path("rag_r1_sq"))
    with scored_world(tmp_path, tokenizer, count=4) as world:
        goes_on_with_more_room(
            disk, capsys, lambda out: cli(["retriever", "data", *map(str, world.words(out, *FEW))])
        )


def test_a_copied_recipe(disk, capsys):
    goes_on_with_more_room(
        disk,
        capsys,
        lambda out: cli(["recipes", "copy", "agentic_rag/grpo", f"{out}.yaml"]),
        rooms=(0, 1, 2, 4, 8),
    )


@pytest.mark.full  # builds an index for each size of the disk
def test_a_chat_over_documents(disk, capsys, tmp_path):
    """Its folder is that of `rag-r1 serve`: a corpus, an index, and the log of the retrieval server."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text(f"Words of the page {number}. " * 100)
    with policy_of() as policy:
        words = ["chat", "--model", "policy", "--base-url", f"{policy.url}/v1", "--ask", QUESTION]
        words += ["--tokenizer", str(policy_path("rag_r1_mq")), "--documents", str(folder)]
        goes_on_with_more_room(
            disk, capsys, lambda out: cli([*words, "--out", str(out)]), (0, 4, 16, 64, 512)
        )
    assert (disk.path / "out" / "chat-documents" / "corpus.jsonl").exists()
