"""Which questions a filter keeps: by hand on a scripted engine, and against the definition, written down once
more without regard to cost."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_process.difficulty_file import read_difficulties
from rag_r1.data.files.questions import Question
from rag_r1.data.rows import QuestionRow
from rag_r1.rollouts.requests import make_request, seeded_fraction
from rag_r1.sft.difficulty_filter import QuestionRollouts, filter_counts, is_kept, rollout_lines, split
from rag_r1.sft.filter_command import replay_question
from rag_r1.sft.plots import as_text, draw
from tests.evaluation.scripted_runs import FAILS, RIGHT, SQ, WRONG, folder_at, row_of, runner_of
from tests.fakes import virtual_time

SEED, REPLAYS = 0, 10
#: What each question's samples come to; the first is the first try.
SCRIPT = {
    "at_once_1": [RIGHT],
    "at_once_2": [RIGHT],
    "at_once_3": [RIGHT],
    "at_once_4": [RIGHT],
    "second": [WRONG, RIGHT],
    "tenth": [WRONG] * 9 + [RIGHT],
    "last": [WRONG] * 10 + [RIGHT],
    "too_late": [WRONG] * 11 + [RIGHT],
    "never": [WRONG] * 12,
    "failed_first": [FAILS, RIGHT],
    "failed_between": [WRONG, FAILS, WRONG, RIGHT],
    "failed_always": [FAILS] * 12,
}


def filtered(path: Path, script=SCRIPT, starts: int = 1, played=None, **options) -> list[QuestionRollouts]:
    """The questions after so many starts of the command."""
    played = [] if played is None else played

    async def main():
        with folder_at(path) as folder:
            runner = runner_of(folder, script, played, **options)
            jobs = []
            for name in script:
                requests = [make_request(row_of(name), SQ, sample=sample) for sample in range(REPLAYS + 1)]
                jobs.append(partial(replay_question, runner, row_of(name), requests))
            return await runner.run(jobs, len(jobs), "question")

    for _ in range(starts):
        questions = virtual_time.run(main())
    return questions


def kept(questions, share: float, seed: int = SEED) -> set[str]:
    return {question.row.id for question in questions if is_kept(question, share, seed)}


def test_the_kept_set_is_the_one_computed_by_hand(tmp_path: Path):
    played: list[str] = []
    questions = filtered(tmp_path, starts=2, tries=1, played=played)
    # Every question that was wrong at first and right in one of ten replays; the rollouts that failed are
    # none, so failed_first was right at its first try, and failed_between wrong at first.
    assert kept(questions, share=0) == {"second", "tenth", "last", "failed_between"}
    at_once = {"at_once_1", "at_once_2", "at_once_3", "at_once_4", "failed_first"}
    assert kept(questions, share=1) == {"second", "tenth", "last", "failed_between"} | at_once
    # With seed 0 the draws of the five are .58, .74, .38, .76 and .06 (see below).
    assert kept(questions, share=0.25) == {"second", "tenth", "last", "failed_between", "failed_first"}
    # A question is not replayed after its first right answer, and each episode was played once.
    assert Counter(name.partition("#")[0] for name in played) == {
        **{name: 1 for name in at_once if name != "failed_first"},
        **{"second": 2, "tenth": 10, "last": 11, "too_late": 11, "never": 11},
        **{"failed_first": 2, "failed_between": 4, "failed_always": 11},
    }
    counts = filter_counts(questions, 0.25, SEED)
    names = ("right_at_first", "right_later", "never_right", "never_judged")
    assert [counts[name] for name in names] == [5, 4, 2, 1]
    assert (counts["kept"], counts["undecided"], counts["rollouts"]) == (5, 0, 5 + 2 + 10 + 11 + 11 + 11 + 3)
    assert counts["histogram"] == {"1": 5, "2": 1, "3": 1, "10": 1, "11": 1, "never": 2}
    assert counts["classes"] == {"easy": 7, "medium": 2, "unclassified": 2}


def test_the_draws_of_the_set_above():
    names = ("at_once_1", "at_once_2", "at_once_3", "at_once_4", "failed_first")
    assert [round(seeded_fraction(SEED, "kept", name), 2) for name in names] == [0.58, 0.74, 0.38, 0.76, 0.06]


def test_a_question_waits_for_its_failed_rollout_until_the_tries_are_used_up(tmp_path: Path):
    script = {"q": [WRONG, FAILS, RIGHT]}
    played: list[str] = []
    [question] = filtered(tmp_path, script, played=played, tries=2)
    assert (question.decided, question.was_right, is_kept(question, 1, SEED)) == (False, (False,), False)
    assert played == ["q#0", "q#1"]
    [question] = filtered(tmp_path, {"q": [WRONG, WRONG, RIGHT]}, played=played, tries=2)
    assert (question.decided, question.was_right) == (True, (False, False, True))
    assert played == ["q#0", "q#1", "q#1", "q#2"]


FATES = st.lists(st.sampled_from([RIGHT, WRONG, WRONG, WRONG, FAILS]), min_size=11, max_size=11)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    script=st.dictionaries(st.sampled_from("abcdefgh"), FATES, min_size=1, max_size=8),
    share=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    seed=st.integers(0, 5),
    pauses=st.lists(st.floats(0, 3), min_size=8, max_size=8),
)
def test_the_kept_set_is_that_of_the_definition(script, share, seed, pauses, tmp_path_factory):
    def pause(ask, turn):
        return pauses["abcdefgh".index(ask.question_id)]

    questions = filtered(tmp_path_factory.mktemp("run"), script, tries=1, pause=pause)
    expected = set()
    for name, fates in script.items():
        tries = [fate == RIGHT for fate in fates if fate != FAILS]
        wrong_at_first = bool(tries) and not tries[0]
        if wrong_at_first and any(tries[1:]):
            expected.add(name)
        if tries and tries[0] and seeded_fraction(seed, "kept", name) < share:
            expected.add(name)
    assert kept(questions, share, seed) == expected
    for question in questions:
        assert not any(question.was_right[:-1])


def test_the_difficulty_script_reads_the_rollouts(tmp_path: Path):
    def rollouts(name: str, *rights: bool) -> QuestionRollouts:
        return QuestionRollouts(row_of(name), rights)

    questions = [
        rollouts("one", True),
        rollouts("nine", *[False] * 8, True),
        rollouts("ten", *[False] * 9, True),
        rollouts("twenty", *[False] * 19, True),
        rollouts("more", *[False] * 20, True),
        rollouts("wrong_21", *[False] * 21),
        rollouts("wrong_20", *[False] * 20),
        rollouts("failed"),
    ]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in rollout_lines(questions)))
    classes = read_difficulties(path)
    difficulties = [classes.class_of(Question(question.row.question, ("x",))) for question in questions]
    assert difficulties == ["easy", "easy", "medium", "medium", "hard", "hard", None, None]
    assert difficulties == [question.difficulty for question in questions]


@settings(max_examples=40)
@given(
    names=st.lists(st.sampled_from("abcdefghij"), unique=True, min_size=1).flatmap(
        lambda names: st.permutations(names)
    ),
    share=st.floats(0, 1),
    seed=st.integers(0, 3),
)
def test_the_parts_are_disjoint_whole_and_the_same_in_any_order(names, share, seed):
    rows = [row_of(name) for name in names]
    train, test = split(rows, share, seed)
    assert [row for row in rows if row in train] == train and [row for row in rows if row in test] == test
    assert len(train) + len(test) == len(rows) and not {r.id for r in train} & {r.id for r in test}
    again = split(sorted(rows, key=lambda row: row.id), share, seed)
    assert [sorted(row.id for row in part) for part in again] == [
        sorted(row.id for row in part) for part in (train, test)
    ]
    assert train


@pytest.mark.parametrize(("count", "validation"), [(5022, 252), (7015, 351), (1, 0), (2, 1), (0, 0)])
def test_a_twentieth_is_for_validation_as_published(count, validation):
    train, test = split([row_of(str(i)) for i in range(count)], 0.05, 0)
    assert (len(train), len(test)) == (count - validation, validation)


def test_a_share_that_is_a_whole_number_of_rows_is_not_rounded_up():
    assert len(split([row_of(str(i)) for i in range(100)], 0.07, 0)[1]) == 7  # 7.000000000000001 in floats


def test_rows_with_the_same_question_stand_in_the_same_part():
    same = [QuestionRow(f"Who is  {i % 10}? ", ("x",), id=f"r{i}") for i in range(40)]
    train, test = split(same, 0.3, 1)
    assert test and not {row.question for row in train} & {row.question for row in test}


def test_the_histogram_is_a_text_and_a_picture(tmp_path: Path):
    bars = {"1": 100, "2": 1, "never": 50}
    lines = as_text(bars).splitlines()
    assert lines[1:] == [f"     1  {'#' * 50} 100", "     2  # 1", f" never  {'#' * 25} 50"]
    assert as_text({}) == lines[0]


@pytest.mark.slow
def test_the_picture_is_a_png(tmp_path: Path):
    draw({"1": 3, "never": 2}, tmp_path / "h.png")
    assert (tmp_path / "h.png").read_bytes()[:4] == b"\x89PNG"
