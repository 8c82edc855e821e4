"""`rag-r1 filter` with a scripted policy behind HTTP: what is kept, what is written, and what is not asked
again."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from data_process.difficulty_file import read_difficulties
from rag_r1.data.rows import QuestionRow, read_rows, write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import make_questions, make_world, to_row
from rag_r1.inference.episode_client import turn_seed
from rag_r1.protocols import load_protocol
from rag_r1.rollouts.provenance import Provenance
from rag_r1.rollouts.requests import make_request, seeded_fraction
from rag_r1.sft import filter_command as command
from tests.evaluation.killed_runs import kill_at
from tests.fakes.scripted_vllm import Policy

MQ = load_protocol("rag_r1_mq")
SEED = 11


def fate(question: str, temperature: float, seed: int) -> bool:
    """Some questions are easy, some are hopeless; the first try is made at temperature 1, replays at 1.2."""
    assert temperature in (1.0, 1.2)
    easiness = seeded_fraction(0, "easiness", question) ** 2
    return seeded_fraction(0, "fate", f"{question}/{temperature}/{seed}") < easiness


def by_definition(rows: list[QuestionRow], share: float) -> dict[str, int | None]:
    """The kept ids with their rollouts until the first right one; and None for those that are not kept."""
    first_right: dict[str, int | None] = {}
    for row in rows:
        samples = [make_request(row, MQ, sample=sample, seed=SEED) for sample in range(11)]
        temperatures = [1.0, *[1.2] * 10]
        tries = zip(samples, temperatures, strict=True)
        rights = [fate(row.question, t, turn_seed(request.seed, 0)) for request, t in tries]
        first = rights.index(True) + 1 if any(rights) else None
        kept = first is not None and (first > 1 or seeded_fraction(SEED, "kept", row.id) < share)
        first_right[row.id] = first if kept else None
    return first_right


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(policy_path("rag_r1_mq"))


def rows_of(count: int) -> list[QuestionRow]:
    questions = make_questions(make_world(1, "train", people=60, places=20), count, 1)
    return [to_row(question, index, "train", MQ) for index, question in enumerate(questions)]


def words(policy: Policy, questions: Path, out: Path, *more: str) -> list[str]:
    flags = {
        "--questions": questions,
        "--url": policy.url,
        "--model": "m",
        "--tokenizer": policy_path("rag_r1_mq"),
        "--retriever-url": policy.url,
        "--out": out,
        "--seed": SEED,
        "--in-flight": 8,
        "--retries": 0,
    }
    return [str(word) for pair in flags.items() for word in pair] + list(more)


def run(policy: Policy, questions: Path, out: Path, *more: str) -> int:
    return command.main(words(policy, questions, out, *more))


def written(folder: Path) -> dict[str, list[QuestionRow]]:
    """The rows of both files."""
    return {
        name: [QuestionRow.from_row(r) for r in read_rows(folder / f"{name}.parquet")]
        for name in ("train", "test")
    }


@pytest.mark.slow
def test_what_is_kept_and_written_is_what_the_definition_says(tmp_path: Path, tokenizer, capsys):
    rows = rows_of(80)
    write_rows(tmp_path / "questions.parquet", rows)
    expected = by_definition(rows, 0.25)
    kept = [row for row in rows if expected[row.id]]
    with Policy(tokenizer, {row.question: row.golds[0] for row in rows}, fate) as policy:
        out = tmp_path / "out"
        assert run(policy, tmp_path / "questions.parquet", out) == 0
        parts = written(out)
        unchanged = [replace(row, split="train") for row in (*parts["train"], *parts["test"])]
        assert sorted(unchanged, key=lambda row: row.id) == sorted(kept, key=lambda row: row.id)
        assert {row.split for row in parts["test"]} == {"test"}
        assert len(parts["test"]) == -(-len(kept) // 20)
        assert not {row.question for row in parts["train"]} & {row.question for row in parts["test"]}

        summary = json.loads((out / "summary.json").read_text())
        assert summary["settings"]["answers"] == "token ids"
        bars = {name: count for name, count in summary["histogram"].items()}
        never = bars.pop("never")
        rollouts = sum(int(name) * count for name, count in bars.items()) + 11 * never
        assert summary["rollouts"] == len(policy.bodies) == rollouts
        assert summary["right_later"] == sum((first or 1) > 1 for first in expected.values())
        classes = read_difficulties(out / "rollouts.jsonl").by_question
        assert len(classes) == 80 - never
        assert (out / "histogram.png").read_bytes()[:4] == b"\x89PNG"
        output = capsys.readouterr().out
        assert f"kept {len(kept)} of 80 questions" in output

        # Another draw from the same rollouts asks nothing.
        contents = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
        requests = len(policy.bodies)
        assert run(policy, tmp_path / "questions.parquet", out, "--share", "1", "--validation", "0") == 0
        everything = by_definition(rows, 1.0)
        assert [row.id for row in written(out)["train"]] == [row.id for row in rows if everything[row.id]]
        assert run(policy, tmp_path / "questions.parquet", out) == 0
        assert {path.name: path.read_bytes() for path in out.glob("*.parquet")} == contents
        assert len(policy.bodies) == requests


def test_files_whose_rows_cannot_be_in_one_are_refused_before_any_rollout(tmp_path: Path, tokenizer, capsys):
    for name, row, level in zip("ab", rows_of(2), ("easy", 3), strict=True):
        write_rows(tmp_path / f"{name}.parquet", [replace(row, metadata={"level": level})])
    with Policy(tokenizer, {}, lambda *unused: False) as policy:
        files = [str(tmp_path / "b.parquet"), "--check-only"]
        assert run(policy, tmp_path / "a.parquet", tmp_path / "out", "--questions", *files) == 1
        assert "extra_info.level has values of several types" in capsys.readouterr().err
        assert run(policy, *files[:1], tmp_path / "out", "--temperature", "0", "--check-only") == 0
    assert "warning: replays at --temperature 0" in capsys.readouterr().err


@pytest.mark.slow
def test_if_nothing_is_kept_that_is_an_error_with_a_hint(tmp_path: Path, tokenizer, capsys):
    rows = rows_of(3)
    write_rows(tmp_path / "questions.parquet", rows)
    with Policy(tokenizer, {}, lambda *unused: False) as policy:
        assert run(policy, tmp_path / "questions.parquet", tmp_path / "out", "--replays", "1") == 1
    assert "no question of 3 is kept" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["never_right"] == 3
    card = Provenance.read(tmp_path / "out")
    assert (card.model.name, card.sampling["replays"]) == ("m", 1) and card.data[
        "questions.parquet"
    ].rows == 3


@pytest.mark.slow
def test_plain_questions_become_rows_of_the_protocol(tmp_path: Path, tokenizer):
    rows = rows_of(6)
    lines = [json.dumps({"question": row.question, "answer": row.golds[0]}) for row in rows]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    with Policy(tokenizer, {row.question: row.golds[0] for row in rows}, lambda *unused: True) as policy:
        assert run(policy, tmp_path / "q.jsonl", tmp_path / "out", "--share", "1") == 0
    parts = written(tmp_path / "out")
    assert len(parts["train"]) == 5 and len(parts["test"]) == 1
    assert parts["train"][0].prompt == tuple(MQ.messages(parts["train"][0].question))
    assert parts["train"][0].golds == (
        dict((r.question, r.golds[0]) for r in rows)[parts["train"][0].question],
    )


@pytest.mark.slow
def test_a_killed_filter_ends_as_one_that_was_not_and_asks_only_what_was_under_way_twice(tmp_path, tokenizer):
    rows = rows_of(40)
    write_rows(tmp_path / "q.parquet", rows)
    golds = {row.question: row.golds[0] for row in rows}
    with Policy(tokenizer, golds, fate, latency_s=0.02) as policy:
        assert run(policy, tmp_path / "q.parquet", tmp_path / "whole") == 0
        once = len(policy.bodies)
        killed = subprocess.Popen(
            [sys.executable, "-m", "rag_r1.sft.filter_command"]
            + words(policy, tmp_path / "q.parquet", tmp_path / "killed"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        kill_at(killed, tmp_path / "killed" / "journal" / "exchanges.ndjson", 30)
        assert run(policy, tmp_path / "q.parquet", tmp_path / "killed") == 0
        assert 0 <= len(policy.bodies) - 2 * once <= 8  # --in-flight
    for name in ("rollouts.jsonl", "train.parquet", "test.parquet"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
