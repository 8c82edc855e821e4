"""The shipped terms as a recipe uses them: over whole trajectories, weighted."""

from __future__ import annotations

import pytest

from rag_r1.agent import Trajectory, Turn
from rag_r1.rewards import RewardSum
from rag_r1.rewards.terms.answer import each_answer

REWARD = RewardSum.from_config([{"term": "em", "weight": 1.0}, {"term": "turn_cost", "weight": -0.05}])


def test_of_two_right_trajectories_the_one_without_repeated_queries_scores_higher():
    reward = RewardSum.from_config([{"term": "em"}, {"term": "repeat_cost", "weight": -0.1}])

    def repeating(answer: str | None, repeated: int) -> float:
        turns = [Turn.searched("", ["q"], repeated_queries=repeated), Turn("", "answer")]
        return reward(Trajectory("t", "q", "rag_r1_mq", turns=turns, answer=answer), ["gold"])["score"]

    assert (repeating("gold", 0), repeating("gold", 2)) == (1.0, pytest.approx(0.8))
    assert repeating("wrong", 2) == repeating(None, 2) == repeating("wrong", 0) == 0.0


def played(answer: str | None, turns: int) -> Trajectory:
    return Trajectory("t", "q", "rag_r1_mq", turns=[Turn("", "search") for _ in range(turns)], answer=answer)


def test_of_two_right_trajectories_the_shorter_scores_higher():
    assert REWARD(played("gold", 2), ["gold"])["score"] == pytest.approx(0.90)
    assert REWARD(played("gold", 3), ["gold"])["score"] == pytest.approx(0.85)


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("answer", ["wrong", "", None])
def test_wrong_trajectories_are_alike_however_long(answer, turns):
    assert REWARD(played(answer, turns), ["gold"])["score"] == 0.0


@pytest.mark.parametrize(
    ("answer", "golds", "value"),
    [
        ("Ada; London", ["Ada; London"], 1.0),
        ("the A. L. ;london.", ["Ada; London", "A. L.; London"], 1.0),
        ("A. L.; Paris", ["Ada; London", "A. L.; Paris"], 1.0),
        ("Ada; Rome", ["Ada; London"], 0.5),
        ("London; Ada", ["Ada; London"], 0.0),
        ("Ada", ["Ada; London"], 0.0),
        ("Ada; London; Rome", ["Ada; London"], 0.0),
        ("Ada", ["Ada", "A. L."], 1.0),
        ("Ada; London", ["Ada; London", "Ada; born; London"], 1.0),
        (None, ["Ada; London"], 0.0),
        ("Ada", [], 0.0),
    ],
)
def test_each_of_n_answers_is_compared_at_its_place_with_all_aliases(answer, golds, value):
    record = Trajectory("t", "?", "rag_r1_mq", answer=answer)
    assert each_answer(record, golds) == value
