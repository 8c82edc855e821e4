"""Which questions are taken for the same, and what becomes of rows that ask the same."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.data.files.duplicates import Outcome, RepeatedRow, question_key
from rag_r1.data.files.qa_parquet import make_rows, make_splits, write_splits
from rag_r1.data.files.question_file import QuestionFile
from rag_r1.data.files.questions import Question
from rag_r1.protocols import load_protocol

SQ = load_protocol("rag_r1_sq")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Who made C++ ?", "Who made C# ?"),
        ("Who made C++?", "Who made C?"),
        ("Who made C#?", "Who made C?"),
        ("What is 2+2?", "What is 2-2?"),
        ("What is 2*2?", "What is 2/2?"),
        ("What is 5!", "What is 5?"),
        ("What is (2+3)!", "What is (2+3)?"),
        ("What is the sum of all n!", "What is the sum of all n?"),
        ("What is 10²?", "What is 102?"),
        ("What is ½?", "What is 12?"),
        ("What is ℝ?", "What is R?"),
        ("Is it -5?", "Is it 5?"),
        ("What is .NET?", "What is NET?"),
        ("What costs $5?", "What costs 5%?"),
        ("कमल क्या है?", "कमाल क्या है?"),  # vowel signs: lotus, wonder
        ("दिन क्या है?", "दीन क्या है?"),  # day, poor
        ("ปา คืออะไร", "ป่า คืออะไร"),  # a tone mark: throw, forest
        ("كَتَبَ؟", "كُتِبَ؟"),  # vowel marks: he wrote, it was written
        ("من علم؟", "من علّم؟"),
        ("می\u200cخواهم", "میخواهم"),
        ("resume?", "résumé?"),
        ("the cat", "a cat"),
        ("1.5 or 2?", "15 or 2?"),
        ("?!", "!?"),
    ],
)
def test_questions_that_differ_in_meaning_are_not_the_same(one, other):
    assert question_key(one) != question_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Who is Ada?", "  who IS\tada  ? "),
        ("Who is Ada?", "Who is Ada"),
        ("Who is Ada.", "Who is Ada…"),
        ("Who is Ada!", "Who is Ada?"),
        ("Who is “Ada”?", 'Who is "Ada"?'),
        ("Ada’s father?", "Ada's father?"),
        ("1815–1852?", "1815-1852?"),
        ("Zoë?", unicodedata.normalize("NFD", "Zoë?")),
        ("ＡＢＣ？", "abc?"),
        ("the oﬃce?", "the office?"),
        ("Who is Ada?!", "Who is Ada"),
        ("Who is Ada!?.", "Who is Ada?"),
        ("Who\u00a0is\u200b Ada?", "Who is Ada?"),
        ("कमल क्या है।", "कमल क्या है"),
        ("من هي؟", "من هي"),
        ("谁是艾达？", "谁是艾达"),
        ("STRASSE?", "Straße?"),
    ],
)
def test_questions_that_are_only_written_differently_are_the_same(one, other):
    assert question_key(one) == question_key(other)


@given(st.text(min_size=1))
def test_no_question_has_an_empty_key_and_case_and_spaces_at_the_ends_never_count(text):
    assert question_key(text)
    if text.strip():
        assert question_key(f" {text}\n") == question_key(text.strip())


@given(st.text(st.characters(categories=("Lu", "Ll", "Lo", "Mn", "Mc", "Nd", "Sm", "Sc")), min_size=1))
def test_no_letter_mark_digit_or_sign_is_dropped(text):
    written = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", text).casefold())
    kept = unicodedata.normalize("NFC", unicodedata.normalize("NFKC", question_key(text)).casefold())
    letters = [c for c in written if unicodedata.category(c)[0] in "LMN"]
    assert [c for c in kept if unicodedata.category(c)[0] in "LMN"] == letters


@pytest.mark.parametrize(
    ("outcome", "is_removed", "split"),
    [
        (Outcome.DUPLICATE, True, "train"),
        (Outcome.IN_TEST, True, "test"),
        (Outcome.OTHER_ANSWERS, False, "train"),
        (Outcome.OVERLAP_KEPT, False, "test"),
    ],
)
def test_an_outcome_says_whether_a_row_is_removed_and_where_the_first_one_is(outcome, is_removed, split):
    repeat = RepeatedRow(GEORGE[1], GEORGE[0], outcome)
    assert (repeat.is_removed, repeat.to_dict("train")["first"]["split"]) == (is_removed, split)


def source(*questions: Question) -> QuestionFile:
    return QuestionFile("made", list(questions), n_read=len(questions))


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


#: PopQA's kind of repetition: two people of one name.
GEORGE = [
    Question("What is George's occupation?", ("politician",), "1", row=1),
    Question("What is George's occupation?", ("painter", "artist"), "2", row=2),
    Question("what is George's occupation", ("Politician",), "3", row=3),
]


def test_rows_with_the_same_question_and_other_answers_stay_and_are_named(tmp_path):
    [train] = make_splits(source(*GEORGE), None)
    assert train.questions == GEORGE[:2]
    assert (train.counts["duplicates"], train.counts["written"], train.other_answers) == (1, 2, 1)
    write_splits([train], SQ, "made", tmp_path)
    kept, removed = lines(tmp_path / "repeated_questions.jsonl")
    assert kept["outcome"] == "kept: same question, other answers"
    assert kept["row"]["golden_answers"] == ["painter", "artist"] and kept["row"]["row"] == 2
    row = {"row": 3, "id": "3", "question": GEORGE[2].question, "golden_answers": ["Politician"]}
    first = {"row": 1, "id": "1", "question": GEORGE[0].question, "golden_answers": ["politician"]}
    outcome = "removed: same question, same answers"
    expected = {"split": "train", "outcome": outcome, "row": row, "first": {"split": "train", **first}}
    assert removed == expected


def test_rows_that_differ_in_their_answers_alone_have_ids_of_their_own():
    without = [Question(q.question, q.golds) for q in GEORGE[:2]]
    ids = [row.id for row in make_rows(without, SQ, "made", "test")]
    assert len(set(ids)) == 2
    assert ids == [row.id for row in make_rows(without[::-1], SQ, "made", "test")][::-1]


def test_a_row_of_train_that_stands_in_test_is_named_with_the_tests_row_whatever_its_answers(tmp_path):
    train, test = make_splits(source(Question("A?", ("x",), row=1), Question("B?", ("y",), row=2)),
                              source(Question("a", ("z",), row=9)))  # fmt: skip
    assert [q.question for q in train.questions] == ["B?"]
    write_splits([train, test], SQ, "made", tmp_path)
    [row] = lines(tmp_path / "repeated_questions.jsonl")
    assert row["outcome"] == "removed: stands in the test set"
    first = row["first"]
    assert (first["split"], first["row"], first["golden_answers"]) == ("test", 9, ["z"])


def test_nothing_repeated_leaves_no_file_not_even_of_an_earlier_run(tmp_path):
    write_splits(make_splits(source(*GEORGE), None), SQ, "made", tmp_path)
    write_splits(make_splits(source(GEORGE[0]), None), SQ, "made", tmp_path)
    assert not (tmp_path / "repeated_questions.jsonl").exists()


some_rows = st.lists(st.tuples(st.sampled_from("AaBb"), st.sampled_from(["x", "X", "y"])), min_size=1)


@given(some_rows, some_rows)
def test_every_row_is_written_or_named(train_rows, test_rows):
    made = [
        source(*(Question(text, (gold,), row=i) for i, (text, gold) in enumerate(rows)))
        for rows in ([("kept in any case", "x"), *train_rows], test_rows)
    ]
    for split, rows_before in zip(make_splits(*made), made, strict=True):
        gone = [repeat.row.row for repeat in split.repeats if repeat.is_removed]
        written = [question.row for question in split.questions]
        assert sorted(gone + written) == list(range(rows_before.n_read))
