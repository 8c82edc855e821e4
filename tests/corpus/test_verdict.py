"""The verdict of a question: the first rule that applies, from the signals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.corpus.answer_matcher import MAX_TOKENS, MIN_COMMON
from rag_r1.corpus.questions import CorpusQuestion
from rag_r1.corpus.retrieval_check import RetrievalResult
from rag_r1.corpus.scan import ScanResult
from rag_r1.corpus.title_index import LEVELS, STRONG, TitleIndex
from rag_r1.corpus.verdict import (
    RULES,
    VERDICTS,
    CorpusFindings,
    QuestionSignals,
    foreign_sources,
    rule_of,
    signals_of,
)
from rag_r1.runs.markdown import table

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "corpora.md"


@pytest.mark.parametrize(
    ("signals", "reason", "verdict"),
    [
        (QuestionSignals(ids_missing=()), "ids_present", "answerable"),
        (QuestionSignals(ids_missing=(), titles={"Ulm": None}), "ids_present", "answerable"),
        (QuestionSignals(("1",), retriever_rank=1, anywhere="distinctive"), "ids_missing", "unanswerable"),
        (QuestionSignals(titles={"Ulm": "case", "Rome": "redirect"}), "titles_present", "answerable"),
        (QuestionSignals(None, {"Ulm": "case", "Rome": None}, 1), "titles_missing", "unanswerable"),
        (QuestionSignals(titles={"Ulm": "suffix", "Rome": None}), "titles_missing", "unanswerable"),
        (QuestionSignals(titles={"Ulm": "suffix"}, anywhere="distinctive"), "titles_similar", "unknown"),
        (QuestionSignals(weak=("yes_no",), retriever_rank=1, anywhere="weak"), "yes_or_no", "unknown"),
        (QuestionSignals(weak=("empty", "long")), "no_string", "unknown"),
        (QuestionSignals(retriever_rank=3), "in_top_k", "answerable"),
        (QuestionSignals(None, None, 0, 2, "weak", ("number",)), "in_top_k", "answerable"),
        (QuestionSignals(retriever_rank=0, anywhere="distinctive"), "anywhere", "answerable"),
        (QuestionSignals(retriever_rank=0, anywhere="weak", weak=("number",)), "anywhere_weak", "unknown"),
        (QuestionSignals(weak=("short",)), "nowhere", "unanswerable"),
        (QuestionSignals(), "nowhere", "unanswerable"),
    ],
)
def test_the_first_rule_that_applies_decides(signals, reason, verdict):
    assert (rule_of(signals).name, rule_of(signals).verdict) == (reason, verdict)


titles = st.none() | st.dictionaries(st.text(max_size=2), st.none() | st.sampled_from(LEVELS), min_size=1)


@settings(deadline=None, max_examples=100)
@given(
    st.builds(
        QuestionSignals,
        ids_missing=st.none() | st.lists(st.text(max_size=2)).map(tuple),
        titles=titles,
        retriever_rank=st.none() | st.integers(0, 3),
        bm25_rank=st.none() | st.integers(0, 3),
        anywhere=st.sampled_from(["distinctive", "weak", "no"]),
        weak=st.lists(st.sampled_from(["number", "short", "common", "yes_no", "empty", "long"])).map(tuple),
    )
)
def test_evidence_that_is_missing_is_never_answerable_and_whole_evidence_always_is(signals):
    rule = rule_of(signals)
    assert rule in RULES and rule.verdict in VERDICTS
    if signals.ids_missing:
        assert rule.verdict == "unanswerable"
    elif signals.ids_missing is None and signals.titles:
        strong = all(level in STRONG for level in signals.titles.values())
        assert (rule.verdict == "answerable") == strong


def test_the_guide_shows_the_table_of_the_rules():
    rows = [[n, f"`{rule.name}`", rule.when, rule.verdict] for n, rule in enumerate(RULES, 1)]
    rules = "\n".join(table(["", "reason", "if", "verdict"], rows, "rlll"))
    assert rules in GUIDE.read_text("utf-8")
    assert f"longer than {MAX_TOKENS} words" in rules


def evidence(**results) -> CorpusFindings:
    titles = TitleIndex(["Ulm", "Rome"])
    titles.note("ulm")
    return CorpusFindings(ScanResult(passages=10, **results), titles)


def asks(*golds: str, **more) -> CorpusQuestion:
    return CorpusQuestion("s", "1", (("q", golds),), **more)


def test_every_signal_is_read_from_what_was_found():
    known = evidence(ids={"1"}, answers={"danube": (2, "7"), "1762": (5, "8")})
    read = signals_of(asks("the Danube", "1762", ids=("1", "2"), titles=("Ulm", "Rome")), known)
    levels = {"Ulm": "case", "Rome": None}
    assert read == QuestionSignals(("2",), levels, None, None, "distinctive", (), 2, "7")


@pytest.mark.parametrize(
    ("golds", "anywhere", "weak"),
    [
        (("1762",), "weak", ("number",)),
        (("1762", "nobody"), "weak", ("number",)),
        (("often",), "weak", ("common",)),
        (("yes",), "no", ("yes_no",)),
        (("?",), "no", ("empty",)),
        (("xy",), "no", ("short",)),
        (("nobody", "xy"), "no", ()),
        (("nobody",), "no", ()),
    ],
)
def test_a_weak_answer_is_told_with_its_reason(golds, anywhere, weak):
    known = evidence(answers={"1762": (1, "8"), "often": (MIN_COMMON + 1, "8")})
    read = signals_of(asks(*golds), known)
    assert (read.anywhere, read.weak) == (anywhere, weak)


def test_all_parts_of_a_question_must_be_found():
    known = evidence(answers={"danube": (2, "7")})
    parts = (("a", ("Danube",)), ("b", ("Rhine",)))
    assert signals_of(CorpusQuestion("s", "1", parts), known).anywhere == "no"
    assert signals_of(CorpusQuestion("s", "1", parts[:1]), known).anywhere == "distinctive"


def test_the_ranks_are_those_of_the_servers():
    retriever, bm25 = {("s", "1"): RetrievalResult(None, ())}, {("s", "1"): RetrievalResult(4, ())}
    known = replace(evidence(), retriever=retriever, bm25=bm25)
    read = signals_of(asks("x"), known)
    assert (read.retriever_rank, read.bm25_rank) == (0, 4)
    assert signals_of(replace(asks("x"), id="2"), known).retriever_rank is None


def test_ids_of_which_none_is_there_are_those_of_another_corpus():
    ids = [("a", ("1", "2")), ("a", ("9",)), ("b", ("8",))]
    questions = [CorpusQuestion(source, "1", (), names) for source, names in ids]
    assert foreign_sources(questions, ScanResult(ids={"1"})) == {"b"}
    assert foreign_sources([CorpusQuestion("c", "1", ())], ScanResult()) == set()
