"""The figures and the verdict of a search card, from answers that are given by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.data.rows import QuestionRow
from rag_r1.evaluation.probes.metrics import ConditionRun, figures, groups_of
from rag_r1.evaluation.probes.verdict import CONDITION_NAMES, MIN_QUESTIONS, percent
from rag_r1.evaluation.report.bootstrap import Bootstrap
from rag_r1.probes.probes import PROBES

FEW = Bootstrap(resamples=200)


def row(i: int, source: str = "nq", **metadata) -> QuestionRow:
    return QuestionRow(f"q{i}?", ("x",), id=f"q{i}", data_source=source, metadata=metadata)


def played(answers: str, failed: int = 0, samples: int = 1) -> ConditionRun:
    """A run of questions q0, q1, ...: `1` right, `0` wrong, `-` not asked."""
    values = {("nq", f"q{i}"): np.array([float(a), 1.0, 2.0]) for i, a in enumerate(answers) if a != "-"}
    return ConditionRun(values, samples * len(values) + failed, failed)


def card_of(**runs: str) -> dict:
    rows = [row(i) for i in range(len(next(iter(runs.values()))))]
    return figures({name: played(answers) for name, answers in runs.items()}, rows, FEW)


R, W = "1" * 30, "0" * 30


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ({"real": R, "closed_book": W, "empty": W, "random": W, "withheld": W}, "searches"),
        ({"real": R, "closed_book": "000001" * 5, "withheld": "010000" * 5}, "searches"),
        ({"real": R, "closed_book": R, "empty": R}, "knows"),
        ({"real": R, "closed_book": W, "empty": "10" * 15, "random": W}, "open"),
        ({"real": R, "closed_book": W, "empty": "1111110" * 4 + "11", "random": W}, "mixed"),
        ({"real": R, "closed_book": "01" * 15}, "open"),
        ({"real": W, "closed_book": W}, "open"),
        ({"real": R[:MIN_QUESTIONS], "closed_book": W[:MIN_QUESTIONS]}, "searches"),
        ({"real": R[: MIN_QUESTIONS - 1], "closed_book": W[: MIN_QUESTIONS - 1]}, "open"),
        ({"real": R}, "open"),
    ],
)
def test_the_verdict_follows_from_the_intervals(runs, verdict):
    assert card_of(**runs)["verdict"] == verdict


def test_the_sentences_say_what_was_found_in_words():
    card = card_of(real="1" * 27 + "000", closed_book=W, gold=R, empty=W)
    assert card["sentences"][0].startswith("It answers 90 % [")
    assert "0 % [0, 12] with a closed book" in card["sentences"][0], "Clopper and Pearson's bound of 0 of 30"
    assert card["sentences"][1].startswith("It searches")
    mixed = card_of(real=R, closed_book=W, random=R)["sentences"][1]
    assert mixed.endswith("with random passages, but less than half with a closed book.")
    assert len(card["sentences"]) == 3 and "gold passages" in card["sentences"][2]


@pytest.mark.parametrize(
    ("real", "gold", "remark"),
    [("0" * 15 + "1" * 15, R, "would help"), (R, "0" * 15 + "1" * 15, "worse"), (R, R, "no difference")],
)
def test_the_gold_passages_show_what_a_better_search_could_add(real, gold, remark):
    assert remark in card_of(real=real, closed_book=W, gold=gold)["sentences"][2]


def test_searching_can_make_it_worse():
    assert card_of(real=W, closed_book=R)["sentences"][-1].startswith("Searching makes it worse")


def test_many_failures_are_told():
    runs = {"real": played(R), "closed_book": played(W, failed=2)}
    card = figures(runs, [row(i) for i in range(30)], FEW)
    assert card["sentences"][-1].endswith("of a selection: a closed book.")
    assert card["conditions"]["closed_book"]["failed"] == 2


def test_few_failures_of_many_samples_are_not_told():
    runs = {"real": played(R), "closed_book": played(W, failed=2, samples=8)}
    assert "of a selection" not in figures(runs, [row(i) for i in range(30)], FEW)["sentences"][-1]


def test_a_condition_is_compared_on_the_questions_that_both_have():
    card = card_of(real="1" * 20 + "0" * 20, gold="-" * 20 + "1" * 20)
    gold = card["conditions"]["gold"]
    assert (gold["questions"], gold["real_there"]["value"], gold["difference"]["value"]) == (20, 0.0, 1.0)


def test_kinds_that_are_the_same_as_a_source_stand_once():
    rows = [row(0, "demo/one_hop", kind="one_hop"), row(1, "demo/both", kind="both")]
    assert list(groups_of(rows)) == ["all", "demo/both", "demo/one_hop"]
    rows = [row(0, "hotpotqa", question_type="bridge"), row(1, "hotpotqa", question_type="comparison")]
    assert list(groups_of([*rows, row(2, "musique", hops=3)])) == [
        "all", "HotpotQA", "MuSiQue", "bridge", "comparison"
    ]  # fmt: skip


def test_a_kind_that_is_named_like_a_data_source_does_not_replace_its_group():
    rows = [row(0, "bridge", kind="bridge"), row(1, "bridge"), row(2, "other", kind="bridge")]
    sizes = {name: len(keys) for name, keys in groups_of(rows).items()}
    assert sizes == {"all": 3, "bridge": 2, "other": 1, "bridge (2)": 2}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_a_difference_is_that_of_the_two_means(answers):
    real, other = ("".join(str(int(a[i])) for a in answers) for i in (0, 1))
    card = figures({"real": played(real), "empty": played(other)}, [row(i) for i in range(len(answers))], FEW)
    condition = card["conditions"]["empty"]
    em, real_em = condition["em"]["value"], condition["real_there"]["value"]
    assert condition["difference"]["value"] == pytest.approx(em - real_em, abs=2e-6)
    assert condition["over_half"]["value"] == pytest.approx(em - real_em / 2, abs=2e-6)


def test_every_condition_has_a_name_in_words():
    assert set(CONDITION_NAMES) == set(PROBES)
    assert percent({"value": None, "low": None, "high": None}) == "–"
