"""What becomes of the rows of several sources: repetitions, overlap, draws. Compared with plain lists."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from data_process.mixture import MixEntry
from data_process.question_pool import QuestionPool
from data_process.sources import SOURCES
from rag_r1.data.files.qa_parquet import make_splits
from rag_r1.data.files.question_file import QuestionFile
from rag_r1.data.files.questions import Question

ANY = SOURCES["questions"]


def entry(split: str = "train", name: str = "made", take: int | None = None, join: int = 1) -> MixEntry:
    return MixEntry(split, ANY, name, Path("made.jsonl"), take=take, join=join)


@contextmanager
def pool(folder: Path, listed: list[tuple[MixEntry, list[Question]]], seed: int = 0):
    """A pool with the rows of each entry."""
    with QuestionPool(folder / "pool.sqlite", [entry for entry, _ in listed], seed) as made:
        for number, (_, questions) in enumerate(listed):
            made.add(number, questions)
        yield made
    assert not (folder / "pool.sqlite").exists()


def questions(count: int, word: str = "Q") -> list[Question]:
    return [Question(f"{word}{i}?", ("x",), row=i) for i in range(count)]


def drawn(folder: Path, take: int, rows: list[Question], seed: int = 0, **named: str) -> list[str]:
    with pool(folder, [(entry(take=take, **named), rows)], seed) as made:
        made.deduplicate()
        made.draw(0)
        return [pooled.question.question for pooled in made.questions()]


def test_a_row_comes_back_as_it_was(tmp_path):
    row = Question("Wer “é”?\nA. x", ("a", "b; c"), "7", 3, {"hops": 2, "part_answers": [["a"], ["b"]]})
    with pool(tmp_path, [(entry(), [row])]) as made:
        [pooled] = made.questions()
        assert pooled.question == row and pooled.question.row == 3
        assert made.at(pooled.seq) == pooled


def test_a_draw_depends_on_the_seed_the_name_and_the_questions_only(tmp_path):
    rows = questions(200)
    chosen = drawn(tmp_path, 50, rows)
    assert len(chosen) == 50 and chosen != [row.question for row in rows[:50]]
    assert sorted(drawn(tmp_path, 50, rows[::-1])) == sorted(chosen)
    assert set(chosen) < set(drawn(tmp_path, 80, rows))
    assert drawn(tmp_path, 50, rows, seed=1) != chosen != drawn(tmp_path, 50, rows, name="other")
    assert drawn(tmp_path, 500, rows) == [row.question for row in rows] == drawn(tmp_path, 10**30, rows)


def test_the_validation_set_is_drawn_before_train_is_compared_with_it(tmp_path):
    rows = questions(40)
    listed = [(entry("test", take=10), rows), (entry("train"), rows)]
    with pool(tmp_path, listed) as made:
        made.deduplicate()
        made.draw(0)
        assert made.overlap() == 10
        made.drop_overlap()
        assert made.overlap() == 0
        assert made.counts(0) == {None: 10, "not drawn": 30}
        assert made.counts(1) == {None: 30, "removed: stands in the test set": 10}
        repeats = [(row.split, first.split, outcome) for row, first, outcome in made.repeats()]
        assert repeats == [("train", "test", "removed: stands in the test set")] * 10


some_rows = st.lists(st.tuples(st.sampled_from("AaBbCD"), st.sampled_from(["x", "X", "y"])), max_size=12)


@settings(max_examples=30)
@given(some_rows, some_rows, some_rows)
def test_repetitions_and_overlap_are_those_that_the_scripts_find(tmp_path_factory, one, two, tested):
    """The pool against `make_splits`, which has all rows in lists; two sources are as one file to it."""
    made = [
        [Question(text, (gold,), row=i) for i, (text, gold) in enumerate(rows)] for rows in (one, two, tested)
    ]
    kept_always = [Question("kept", ("x",))]
    train = QuestionFile("train", [*kept_always, *made[0], *made[1]])
    expected = make_splits(train, QuestionFile("test", made[2]) if made[2] else None)
    listed = [(entry("test"), made[2]), (entry(), [*kept_always, *made[0]]), (entry(name="two"), made[1])]
    with pool(tmp_path_factory.mktemp("pool"), listed) as pool_:
        pool_.deduplicate()
        pool_.drop_overlap()
        for split in expected:
            kept = [pooled.question for pooled in pool_.questions() if pooled.split == split.name]
            assert kept == split.questions
        removed = sum(repeat.is_removed for split in expected for repeat in split.repeats)
        outcomes = [outcome for _, _, outcome in pool_.repeats()]
        assert sum(outcome.startswith("removed") for outcome in outcomes) == removed
        assert outcomes.count("kept: same question, other answers") == sum(s.other_answers for s in expected)
