"""Questions from files of all kinds, each with an id of its own; draws that depend on their key only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.io.errors import DataError
from rag_r1.protocols import load_protocol
from rag_r1.rollouts.requests import make_request, questions_hash, read_questions, seeded_fraction

MQ, SQ = load_protocol("rag_r1_mq"), load_protocol("rag_r1_sq")


def row(name: str, **more) -> QuestionRow:
    given = {"prompt": tuple(MQ.messages(name)), "id": name, "protocol": MQ.name, "data_source": "s", **more}
    return QuestionRow(f"What is {name}?", ("x",), **given)


def test_a_data_set_is_read_unchanged_and_other_files_become_the_same_rows(tmp_path: Path):
    rows = [row("a"), row("b", metadata={"kind": "hop"})]
    write_rows(tmp_path / "set.parquet", rows)
    (tmp_path / "plain.jsonl").write_text(
        "".join(json.dumps({"question": q, "answer": "y", "id": i}) + "\n" for q, i in (("C?", 7), ("D?", 8)))
    )
    questions = read_questions([tmp_path / "set.parquet", tmp_path / "plain.jsonl"], MQ)
    assert questions.rows[:2] == rows
    assert [row.id for row in questions.rows[2:]] == ["plain/train/7", "plain/train/8"]
    assert questions.rows[2].prompt == tuple(MQ.messages("C?")) and questions.rows[2].golds == ("y",)
    assert [row.id for row in read_questions([tmp_path / "set.parquet"], MQ, limit=1).rows] == ["a"]


def test_rows_that_cannot_be_asked_are_all_named_or_left_out(tmp_path: Path):
    bad = [row("a"), replace(row("b"), golds=()), row("a"), replace(row("c"), question=" "), row("", id="")]
    write_rows(tmp_path / "set.parquet", bad)
    with pytest.raises(DataError) as error:
        read_questions([tmp_path / "set.parquet"], MQ)
    for message in (
        "4 bad rows",
        "row 2: reward_model",
        "row 3: the id 'a' is also that of",
        "row 4",
        "row 5",
    ):
        assert message in str(error.value)
    questions = read_questions([tmp_path / "set.parquet"], MQ, skip_bad_rows=True)
    assert [row.id for row in questions.rows] == ["a"] and questions.bad.count == 4
    with pytest.raises(DataError, match="Repair them[.]$"):  # a command without the flag does not name it
        read_questions([tmp_path / "set.parquet"], MQ, skip_bad_rows=None)


def test_files_without_a_question_and_files_of_something_else_are_named(tmp_path: Path):
    write_rows(tmp_path / "empty.parquet", [])
    (tmp_path / "no.parquet").write_bytes(b"no")
    with pytest.raises(DataError, match="no question in .*empty.parquet"):
        read_questions([tmp_path / "empty.parquet"], MQ)
    with pytest.raises(DataError, match="no.parquet is not a parquet file"):
        read_questions([tmp_path / "no.parquet"], MQ)
    with pytest.raises(DataError, match="absent.parquet"):
        read_questions([tmp_path / "absent.parquet"], MQ)


def test_a_row_is_asked_with_its_own_prompt_only_if_that_is_of_the_runs_protocol():
    own = row("a", prompt=({"role": "user", "content": "Own? What is a?"},))
    assert make_request(own, MQ).messages == own.prompt
    assert make_request(own, SQ).messages is None
    assert make_request(own, MQ, own_prompt=True).messages is None
    assert make_request(replace(own, prompt=()), MQ).messages is None
    assert make_request(own, MQ, sample=3).id == "a#3"


def test_every_sample_has_a_seed_of_its_own_and_the_same_one_each_time():
    seeds = [
        make_request(row(name), MQ, sample=n, seed=s).seed for name in "ab" for n in (0, 1) for s in (0, 1)
    ]
    assert len(set(seeds)) == 8 and all(0 <= seed < 1 << 31 for seed in seeds)
    assert make_request(row("a"), MQ, seed=5) == make_request(row("a"), MQ, seed=5)


@given(
    st.permutations([row(name) for name in "abcd"]), st.sampled_from(["golds", "question", "id", "prompt"])
)
def test_the_hash_is_of_what_is_asked_in_any_order(rows, field):
    assert questions_hash(rows) == questions_hash([row(name) for name in "abcd"])
    changed = {"golds": ("z",), "question": "?", "id": "z", "prompt": ()}[field]
    assert questions_hash([replace(rows[0], **{field: changed}), *rows[1:]]) != questions_hash(rows)


@settings(max_examples=25)
@given(st.integers(), st.text(max_size=8), st.text(max_size=8))
def test_a_draw_is_in_the_unit_interval_and_depends_on_all_three(seed, purpose, key):
    value = seeded_fraction(seed, purpose, key)
    assert 0 <= value < 1 and value == seeded_fraction(seed, purpose, key)
    assert (
        len(
            {
                value,
                seeded_fraction(seed + 1, purpose, key),
                seeded_fraction(seed, purpose + "x", key),
                seeded_fraction(seed, purpose, key + "x"),
            }
        )
        == 4
    )


def test_draws_are_even():
    values = [seeded_fraction(0, "kept", str(i)) for i in range(4000)]
    assert sum(value < 0.25 for value in values) / 4000 == pytest.approx(0.25, abs=0.03)
