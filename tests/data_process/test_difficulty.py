"""Questions drawn by source and difficulty: the classes, the draw, and what is said when it falls short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_process.difficulty import PUBLISHED, select
from data_process.difficulty_file import read_difficulties
from rag_r1.data.difficulty_class import difficulty_class
from rag_r1.data.files.duplicates import Outcome, question_key
from rag_r1.data.files.questions import Question
from rag_r1.io.errors import DataError

from .conftest import write_lines


def test_the_published_stages_have_350_and_8148_questions():
    assert [sum(PUBLISHED[stage].values()) for stage in (1, 2)] == [350, 8148]
    assert {class_ for _, class_ in PUBLISHED[1]} == {"medium"}


@pytest.mark.parametrize(
    ("rollouts", "right", "name"),
    [
        (1, True, "easy"),
        (9, True, "easy"),
        (10, True, "medium"),
        (20, True, "medium"),
        (21, True, "hard"),
        (21, False, "hard"),
        (20, False, None),
        (5, False, None),
    ],
)
def test_a_class_is_the_number_of_rollouts_until_one_is_right(rollouts, right, name):
    assert difficulty_class(rollouts, right) == name


def test_difficulties_are_found_by_id_and_by_the_questions_words(tmp_path):
    rows = {"id": "h-1", "rollouts": 3}, {"question": "Who is Ada?", "rollouts": 30}
    known = read_difficulties(write_lines(tmp_path / "d.jsonl", *rows))
    assert known.class_of(Question("anything", ("x",), "h-1")) == "easy"
    assert known.class_of(Question("who is ADA", ("x",), "h-2")) == "hard"
    assert known.class_of(Question("Who is Bob?", ("x",))) is None


def test_of_two_numbers_the_last_counts_and_a_number_counts_more_than_rollouts(tmp_path):
    rollouts = ({"question": "A?", "rewards": {"cover_em": 1.0}} for _ in range(2))
    numbers = {"question": "A?", "rollouts": 30}, {"question": "a", "rollouts": 12}
    known = read_difficulties(write_lines(tmp_path / "d.jsonl", *rollouts, *numbers))
    assert known.class_of(Question("A?", ("x",))) == "medium"


def test_our_own_trajectory_records_count_as_rollouts_in_the_order_played(tmp_path):
    rewards = {
        "Late?": [float(i == 11) for i in range(15)],
        "Never?": [0.0] * 21,
        "Unclear?": [0.0] * 20,
        "Soon?": [None] * 12 + [1.0],
        "Punished?": [-1.0] * 14 + [0.5],
    }
    rows = [
        {"question": text, "rewards": {"cover_em": em}} for text, listed in rewards.items() for em in listed
    ]
    known = read_difficulties(write_lines(tmp_path / "d.jsonl", *rows))
    classes = [known.class_of(Question(text, ("x",))) for text in rewards]
    assert classes == ["medium", "hard", None, "easy", "medium"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not JSON\n", "is not JSON lines"),
        ('{"question": "A?", "rollouts": 3}\n[]\n', "line 2: needs `question` or `id`"),
        ('{"question": "A?"}\n', "line 1: needs `rollouts`"),
        ('{"question": "A?", "rollouts": 0}\n', "line 1: needs `rollouts`"),
        ('{"id": "a", "rewards": {"cover_em": 1}}\n', "line 1: needs `rollouts`"),
        ('{"question": "A?", "rewards": {"cover_em": NaN}}\n', "line 1: rewards.cover_em must be a number"),
        ('{"question": "A?", "rewards": {"cover_em": "0"}}\n', "line 1: rewards.cover_em must be a number"),
        ("\n", "gives no question a difficulty"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_tells_no_difficulty_is_refused_with_its_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / "d.jsonl").write_text(text)
    with pytest.raises(DataError, match=message):
        read_difficulties(tmp_path / "d.jsonl")


MAKE_UP = {("hotpotqa", "medium"): 2, ("hotpotqa", "hard"): 1, ("2wiki", "medium"): 3}


def draw(seed: int = 0, **classes: list[str | None]):
    """What is drawn for MAKE_UP from questions of these classes, `h` of HotpotQA and `w` of 2Wiki."""
    made = {
        name: [Question(f"{name} {i}?", ("x",), f"{name}-{i}") for i in range(len(of))]
        for name, of in classes.items()
    }
    class_of = {q.id: name for key, of in classes.items() for q, name in zip(made[key], of, strict=True)}
    sources = {"hotpotqa": made["h"], "2wiki": made["w"]}
    return select(sources, MAKE_UP, lambda question: class_of[question.id], {}, seed)


def test_every_class_is_drawn_as_often_as_asked_for_and_a_shortfall_is_told_with_what_there_was():
    drawn = draw(h=["medium", "medium", "medium", "hard", "easy"], w=["medium", "hard", None])
    assert [(c.source, c.class_, c.requested, c.drawn) for c in drawn.counts] == [
        ("hotpotqa", "medium", 2, 2),
        ("hotpotqa", "hard", 1, 1),
        ("2wiki", "medium", 3, 1),
    ]
    available = "1 hard, 1 medium, 1 unclassified"
    assert drawn.shortfalls == [
        f"2wiki medium: 1 of 3 questions; usable and not in the validation set are {available}"
    ]


def test_without_difficulties_a_sources_counts_are_drawn_from_all_of_its_questions():
    made = {"hotpotqa": [Question(f"{i}?", ("x",)) for i in range(4)]}
    drawn = select(made, MAKE_UP, None, {}, seed=0)
    assert len(drawn.questions) == 3
    assert drawn.shortfalls == [
        "2wiki any: 0 of 3 questions; usable and not in the validation set are none at all"
    ]


def test_the_validation_sets_questions_and_repeats_are_not_drawn():
    made = {"hotpotqa": [Question(text, ("x",)) for text in ("A?", "a", "B?", "C?")]}
    excluded = {question_key("b"): Question("b", ("x",))}
    drawn = select(made, {("hotpotqa", "any"): 4}, None, excluded, seed=0)
    assert {q.question for q in drawn.questions} == {"A?", "C?"}
    assert [(repeat.row.question, repeat.outcome) for repeat in drawn.repeats] == [
        ("a", Outcome.DUPLICATE),
        ("B?", Outcome.IN_TEST),
    ]


NAMES = st.sampled_from(["easy", "medium", "hard", None])


@given(st.lists(NAMES, max_size=12), st.lists(NAMES, max_size=12), st.integers(0, 9))
def test_a_draw_is_repeatable_holds_each_question_once_and_only_of_the_classes_asked_for(hotpot, wiki, seed):
    drawn = draw(seed, h=hotpot, w=wiki)
    assert drawn == draw(seed, h=hotpot, w=wiki)
    ids = [q.id for q in drawn.questions]
    assert len(set(ids)) == len(ids) == sum(count.drawn for count in drawn.counts)
    for count in drawn.counts:
        available = {"hotpotqa": hotpot, "2wiki": wiki}[count.source].count(count.class_)
        assert count.drawn == min(count.requested, available)
