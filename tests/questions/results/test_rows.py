"""What is kept: no question twice, none of test in train, and rows that name their passages."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.rows import QuestionRow, read_rows
from rag_r1.protocols import load_protocol
from rag_r1.questions.drafts import Draft, Outcome
from rag_r1.questions.results.card import card_of, page_of
from rag_r1.questions.results.duplicates import without_duplicates
from rag_r1.questions.results.rows import write_files
from rag_r1.runs.response_cache import Usage
from tests.questions.drafted import draft


def verified(*drafts: Draft) -> list[Outcome]:
    return [Outcome(one.seed, one, is_verified=True) for one in drafts]


def reasons(*drafts: Draft, similarity: float = 0.8) -> list[str | None]:
    return [outcome.reason for outcome in without_duplicates(verified(*drafts), similarity)]


def born(name: str, where: str = "Where was Ann Lee born?", answer: str = "Ulm", **more) -> Draft:
    return draft(where, answer, name=name, **more)


def test_the_first_of_two_questions_with_one_wording_is_kept():
    assert reasons(born("a"), born("b2", "where was ann lee  born")) == [None, "duplicate"]


def test_one_answer_from_the_same_passages_is_one_question():
    first, second = born("a"), born("b", "In which town did the life of Ann Lee begin?")
    assert reasons(first, second) == [None, "duplicate"]


def test_two_facts_in_another_order_are_the_same_answer():
    wording = "What do Ann Lee and Ulm have?"
    first, second = (draft(wording, answer, "both") for answer in ("1903 and Germany", "Germany and 1903"))
    other = draft(f"Now, {wording}", "1903 and Danube", "both")
    again = replace(second, question="What is had by Ulm and Ann Lee?")
    assert reasons(first, replace(again, seed=replace(again.seed, id="b"))) == [None, "duplicate"]
    assert reasons(first, replace(other, seed=replace(other.seed, id="b"))) == [None, None]


def test_nearly_one_wording_counts_with_the_same_answer_only():
    name = "Where was the writer Ann Lee born, who wrote Grey Water?"
    near = "Where was the writer Ann Lee born, who once wrote Grey Water?"
    other = draft(near, "Ulm", "one_hop", "Ann Lee was born in Ulm, says another page.", name="z", page="2")
    assert reasons(born("a", name), other) == [None, "duplicate"]
    assert reasons(born("a", name), other, similarity=0) == [None, None]
    elsewhere = draft(near, "Trier", "one_hop", "She was born in Trier.", name="z", page="2")
    assert reasons(born("a", name), elsewhere) == [None, None]


def test_one_answer_from_copies_of_a_passage_is_one_question_in_any_wording():
    text = "Ann Lee was born in Ulm in 1903, where she wrote the novel Grey Water and some letters."
    first = draft("In which town did the life of Ann Lee begin?", "Ulm", "one_hop", text, name="a")
    copy = draft("Where was Ann Lee born?", "Ulm", "one_hop", text, name="b", page=" 2", split="test")
    assert reasons(first, copy) == ["in_other_split", None]
    template = draft("Where was Bo Ray born?", "Ulm", "one_hop", text, name="c", page=" 3")
    assert reasons(first, template) == [None, None], "one text, and two people"


def test_passages_with_one_text_are_copies_too():
    first, second = draft("In which town did the life of Ann Lee begin?", "Ulm", name="a"), born("b")
    mirrored = replace(second, passages=(replace(second.passages[0], id="mirror"),))
    assert reasons(first, mirrored) == [None, "duplicate"]


def test_questions_about_two_names_are_two_questions():
    name = "Which river flows past the birthplace of the writer Ann Lee?"
    text = "Anna Lee was born on the Danube."
    other = draft(name.replace("Ann", "Anna"), "Danube", "one_hop", text, name="z", page="2")
    assert reasons(draft(name, "Danube", "bridge"), other) == [None, None]


def test_of_train_and_test_that_of_test_is_kept():
    assert reasons(born("a"), born("b", split="test")) == ["in_other_split", None]
    assert reasons(born("a", split="test"), born("b")) == [None, "in_other_split"]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["train", "test"])), max_size=8))
def test_no_wording_is_kept_twice_and_something_of_each_is(drawn):
    drafts = [
        born(str(n), f"Where was Ann Lee number {w} born?", split=split) for n, (w, split) in enumerate(drawn)
    ]
    kept = [one for one in without_duplicates(verified(*drafts), 0) if one.is_kept]
    questions = [one.draft.question for one in kept]
    facts = {frozenset(p.id for p in one.draft.passages) for one in kept}
    assert len(set(questions)) == len(questions)
    assert bool(kept) == bool(drawn) and len(facts) <= 1 and len(kept) <= 1, "it is one fact"


def test_what_was_refused_before_does_not_make_a_question_a_duplicate():
    refused = Outcome(born("a").seed, born("a"), reason="needs_no_search")
    assert [o.reason for o in without_duplicates([refused, *verified(born("b"))], 0.8)] == [
        "needs_no_search",
        None,
    ]


def test_the_rows_name_the_passages_and_are_read_as_any_others(tmp_path):
    kept = verified(
        born("a"), draft("On which river does the home of Ann Lee lie?", "Danube", "bridge", split="test")
    )
    refused = Outcome(born("c").seed, reason="malformed_reply")
    counts = write_files(tmp_path, [*kept, refused], load_protocol("rag_r1_mq"), "own", 0)
    assert counts == {"train": 1, "test": 1}
    [row] = [QuestionRow.from_row(row) for row in read_rows(tmp_path / "test.parquet")]
    assert row.golds == ("Danube",) and row.id.startswith("own/test/") and row.protocol == "rag_r1_mq"
    assert GoldEvidence.of(row.metadata).ids == {"Ann Lee", "Ulm"} and row.metadata["hops"] == 2
    assert row.metadata["question_type"] == "bridge"
    [line] = [json.loads(text) for text in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert (line["step"], line["reason"], line["passages"]) == ("draft", "malformed_reply", ["Ann Lee"])
    write_files(tmp_path, kept[:1], load_protocol("rag_r1_mq"), "own", 0)
    assert not (tmp_path / "test.parquet").exists(), "none is left of an earlier start"


def test_the_card_adds_up_and_nothing_in_it_is_markup():
    outcomes = [
        *verified(born("a")),
        Outcome(born("b").seed, reason="malformed_reply"),
        Outcome(born("c").seed, born("c"), reason="needs_no_search"),
        Outcome(born("d").seed, born("d")),
    ]
    settings = {
        "teacher": {"model": "<script>|x"},
        "reader": {"model": "r"},
        "prompts_sha256": {"teacher": "a" * 64},
        "passages": 5,
        "corpus_sha256": "b" * 64,
    }
    usage = {"teacher": (Usage(4, 100, 10), 1.5), "reader": (Usage(), 0.0)}
    card = card_of(outcomes, {"train": 1, "test": 0}, settings, usage)
    assert (card["seeds"], card["kept"], card["open"], card["yield"]) == (4, 1, 1, 0.25)
    assert card["refused"] == {"malformed_reply": 1, "needs_no_search": 1}
    assert card["steps"]["draft"] == {"reached": 3, "refused": 1}
    assert card["steps"]["closed_book"] == {"reached": 2, "refused": 1}
    assert card["steps"]["duplicates"] == {"reached": 1, "refused": 0}
    page = str(page_of(card))
    assert "<script>" not in page and "1 are open: the run was stopped, or" in page and "1.5" in page
