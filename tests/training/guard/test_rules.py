"""The guard's rules: which signs show in which series, and with which verdict."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rag_r1.config.guard import GuardOptions
from rag_r1.training.guard.guard import Guard
from rag_r1.training.guard.signs import Sign, TrainingFacts, Verdict

NOTE, WARN, ROLL_BACK, STOP = Verdict
#: A training that learns and then keeps what it has learned; the noise is that of a hundred trajectories.
LEARNS = [0.36, 0.57, 0.66, 0.74, 0.67, 0.78, 0.66, 0.83, 0.79, 0.84]

#: A step's questions are drawn at random, as in the recipes.
SHUFFLED = TrainingFacts(questions=16)


def seen(
    metrics: Sequence[Mapping[str, float]], facts: TrainingFacts = SHUFFLED, **options
) -> list[tuple[int, Sign]]:
    guard = Guard(GuardOptions(**options), facts)
    return [(step, sign) for step, values in enumerate(metrics, 1) for sign in guard.see(step, values)]


def steps(right: Sequence[float], **others: Sequence[float] | float) -> list[dict[str, float]]:
    """Metrics of steps: right answers, the reward (equal to them unless given), and others, the last value of
    which stays."""
    rows = []
    for i, value in enumerate(right):
        row = {"search/right": value, "search/score": value}
        for name, series in others.items():
            values = [series] if isinstance(series, int | float) else series
            row[name.replace("__", "/")] = values[min(i, len(values) - 1)]
        rows.append(row)
    return rows


def verdicts(found: list[tuple[int, Sign]]) -> dict[str, tuple[int, Verdict]]:
    """The first step of each sign's worst verdict."""
    worst: dict[str, tuple[int, Verdict]] = {}
    for step, sign in found:
        if sign.name not in worst or sign.verdict > worst[sign.name][1]:
            worst[sign.name] = (step, sign.verdict)
    return worst


def test_a_training_that_learns_shows_no_sign():
    assert seen(steps(LEARNS, search__searches=[1.0, 1.5, 1.7], search__valid_actions=[0.97, 1.0])) == []


def test_right_answers_that_vanish_with_their_reward_are_to_be_rolled_back_at_once():
    ((step, sign),) = seen(steps([*LEARNS, 0.05]))
    assert (step, sign.name, sign.verdict, sign.since) == (11, "right_answers", ROLL_BACK, 11)


def test_a_training_that_learns_fast_and_breaks_down_soon_is_known_by_what_chance_can_do():
    rows = steps([0.33, 0.59, 0.70, 0.0])
    assert verdicts(seen(rows)) == {"right_answers": (4, ROLL_BACK)}
    # If nothing is known of chance, the fall is not much larger than the steps before it.
    assert verdicts(seen(rows, TrainingFacts())) == {}
    assert verdicts(seen(rows, TrainingFacts(questions=4))) == {}


def by_chance(share: float, answers: int, length: int, draws: random.Random) -> list[dict[str, float]]:
    """A training that learns nothing: of so many answers in a step, each is right with this chance."""
    return steps([sum(draws.random() < share for _ in range(answers)) / answers for _ in range(length)])


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("questions", [8, 16, 64])
def test_chance_alone_shows_no_sign(share, questions):
    draws, facts = random.Random(0), TrainingFacts(questions=questions)
    # As many as with groups of eight, half of which agree.
    assert not [True for _ in range(20) if seen(by_chance(share, 4 * questions, 60, draws), facts)]


@pytest.mark.parametrize("questions", [8, 16, 64])
def test_if_all_answers_to_a_question_agree_chance_shows_a_sign_in_few_runs(questions):
    draws, facts = random.Random(0), TrainingFacts(questions=questions)
    shown = [bool(seen(by_chance(0.5, questions, 60, draws), facts)) for _ in range(50)]
    assert sum(shown) <= 3


def test_a_slow_fall_shows_in_the_mean_of_several_steps():
    noise = random.Random(1)
    falling = [0.85 - 0.03 * i + noise.uniform(-0.05, 0.05) for i in range(20)]
    found = verdicts(seen(steps([*LEARNS, *LEARNS[-4:], *falling])))
    assert found["right_answers"][1] is ROLL_BACK and 18 <= found["right_answers"][0] <= 32


def test_a_reward_that_rises_while_right_answers_fall_is_to_be_stopped_and_its_term_named():
    rows = steps(
        [*LEARNS, 0.3, 0.1], search__score=[*LEARNS, 1.5, 2.0], search__searches=[1.5] * 10 + [3.0, 4.0]
    )
    found = seen(rows, TrainingFacts({"em": 0.1, "searches": 0.5}, questions=16))
    step, sign = next(item for item in found if item[1].name == "right_answers")
    assert (step, sign.verdict) == (12, STOP) and "it pays for searches (weight 0.5)" in sign.cause


def test_held_out_answers_that_fall_are_to_be_rolled_back():
    rows = steps(LEARNS)
    for number, value in ((2, 0.8), (4, 0.82), (6, 0.6)):
        rows[number]["val-aux/nq/right/mean@1"] = value
        rows[number]["val-aux/nq/probe_gold/right/mean@1"] = 0.0  # a probe's questions are others
    ((step, sign),) = seen(rows)
    assert (step, sign.name, sign.verdict, sign.since) == (7, "held_out", ROLL_BACK, 6)


def test_held_out_answers_that_fall_while_their_reward_rises_are_to_be_stopped():
    rows = steps(LEARNS, search__searches=[1.5] * 5 + [3.0])
    for number, right, reward in ((1, 0.8, 0.2), (3, 0.82, 0.3), (5, 0.5, 0.6)):
        rows[number] |= {"val-aux/nq/em/mean@1": right, "val-aux/nq/score/mean@1": reward}
    ((step, sign),) = seen(rows, TrainingFacts({"searches": 0.5}))
    assert (step, sign.name, sign.verdict) == (6, "held_out", STOP) and "pays for searches" in sign.cause


FEWER = [*LEARNS, 0.1, 0.1]


@pytest.mark.parametrize(
    ("name", "sign", "healthy", "wrong"),
    [
        ("search/searches", "searches", 1.6, 0.3),
        ("search/valid_actions", "valid_actions", 1.0, 0.5),
        ("search/logprob_right", "logprob_right", -0.03, -0.6),
        ("search/logprob", "entropy", -0.05, -1.5),
    ],
)
def test_a_sign_is_a_warning_while_answers_stay_right_and_a_rollback_when_they_do_not(
    name, sign, healthy, wrong
):
    series = [healthy] * 10 + [wrong] * 2
    key = name.replace("/", "__")
    ((first, warned),) = seen(steps([*LEARNS, 0.8, 0.8], **{key: series}))
    assert (warned.name, warned.verdict) == (sign, WARN) and first in (11, 12)
    assert verdicts(seen(steps(FEWER, **{key: series})))[sign][1] is ROLL_BACK


@pytest.mark.parametrize(
    ("name", "healthy", "ended"),
    [("search/groups_without_signal", 0.4, 0.95), ("search/logprob", -0.3, -0.01)],
)
def test_a_policy_that_tries_nothing_new_is_noted_and_no_more(name, healthy, ended):
    series = [healthy] * 10 + [ended] * 2
    ((_, sign),) = seen(steps([*LEARNS, 0.8, 0.8], **{name.replace("/", "__"): series}))
    assert (sign.name, sign.verdict) == ("exploration", NOTE)
    assert verdicts(seen(steps(FEWER, **{name.replace("/", "__"): series})))["exploration"][1] is NOTE


SYNCHRONOUS = TrainingFacts(is_first_kl_zero=True)
ASYNCHRONOUS = TrainingFacts(is_first_kl_zero=True, is_asynchronous=True)
#: Trajectories of earlier weights in all steps but the first and the fifth.
LAGGING = {"training__off_policy__trajectory_staleness_worst__max": [0, 1, 1, 1, 0, 1]}


@pytest.mark.parametrize(
    ("series", "facts", "expected"),
    [
        (
            {"training__rollout_probs_diff_mean": [1e-3, 1e-3, 0.05, 0.05]},
            TrainingFacts(),
            {"engine": (4, ROLL_BACK)},
        ),
        ({"training__rollout_probs_diff_mean": [1e-3, 0.05, 1e-3]}, TrainingFacts(), {}),
        ({"actor__ppo_kl": [1e-5, 0.01, -0.01]}, SYNCHRONOUS, {"engine": (3, ROLL_BACK)}),
        ({"actor__ppo_kl": [1e-5, 0.01, -0.01]}, TrainingFacts(), {}),
        ({**LAGGING, "actor__ppo_kl": [*[0.01] * 4, 1e-5]}, ASYNCHRONOUS, {}),
        ({**LAGGING, "actor__ppo_kl": [0.01] * 5}, ASYNCHRONOUS, {"engine": (5, ROLL_BACK)}),
        ({**LAGGING, "actor__ppo_kl": [0.01] * 4}, SYNCHRONOUS, {"engine": (2, ROLL_BACK)}),
    ],
)
def test_an_engine_with_other_weights_is_known_by_its_probabilities(series, facts, expected):
    assert verdicts(seen(steps(LEARNS, **series), facts)) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_is_to_be_rolled_back(value):
    assert verdicts(seen(steps(LEARNS, actor__grad_norm=[0.2, 0.3, value]))) == {"not_finite": (3, ROLL_BACK)}


def test_a_gradient_far_above_the_usual_is_a_warning():
    assert verdicts(seen(steps(LEARNS, actor__grad_norm=[0.2, 0.3, 0.2, 0.3, 9.0, 0.2]))) == {
        "gradient": (5, WARN)
    }


def test_a_mask_that_lets_observations_be_trained_on_is_to_be_stopped_in_the_first_step():
    rows = steps(LEARNS, search__generated_tokens=50.0, search__trained_tokens=150.0)
    assert verdicts(seen(rows)) == {"mask": (1, STOP)}
    assert seen(steps(LEARNS, search__generated_tokens=50.0, search__trained_tokens=50.0)) == []


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("search__masked", "masked"),
        ("search__failed_calls", "tools"),
        ("search__token_limit", "cut_off"),
    ],
)
def test_what_leaves_little_to_train_on_is_a_warning(name, sign):
    assert verdicts(seen(steps(LEARNS, search__calls=1.0, **{name: [0.0, 0.6, 0.0, 0.6, 0.6]}))) == {
        sign: (5, WARN)
    }


def test_a_sign_is_reported_once_while_it_shows_and_again_when_it_becomes_worse():
    searches = [1.6] * 10 + [0.3] * 6
    right = [*LEARNS, 0.8, 0.8, 0.8, 0.1, 0.1, 0.1]
    found = [
        (step, sign.verdict)
        for step, sign in seen(steps(right, search__searches=searches))
        if sign.name == "searches"
    ]
    assert found == [(12, WARN), (14, ROLL_BACK)]


def test_a_run_that_went_back_is_judged_by_what_it_went_back_to():
    guard = Guard(GuardOptions())
    for step, row in enumerate(steps([*LEARNS, 0.0]), 1):
        guard.see(step, row)
    guard.back_to(9)
    assert guard.history.right.steps == list(range(1, 10))
    assert [guard.see(step, row) for step, row in enumerate(steps([0.8, 0.82, 0.81]), 10)] == [[], [], []]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 2), st.floats(0, 99)), max_size=30))
def test_a_batch_shows_the_signs_of_its_step_before_the_step_ends_and_they_are_reported_once(values):
    rows = [
        {"search/right": right, "search/score": right, "search/searches": searches, "actor/grad_norm": norm}
        for right, searches, norm in values
    ]
    guard, early, late = Guard(GuardOptions(), SHUFFLED), [], []
    for step, row in enumerate(rows, 1):
        batch = {name: value for name, value in row.items() if name.startswith("search/")}
        early += [(step, sign) for sign in guard.see(step, batch, is_whole=False)]
        late += [(step, sign) for sign in guard.see(step, row)]
    assert {sign.name for _, sign in late} <= {"gradient"}
    assert sorted([*early, *late], key=str) == sorted(seen(rows), key=str)


def test_a_batch_of_a_step_that_has_ended_says_nothing():
    guard = Guard(GuardOptions())
    for step, row in enumerate(steps(LEARNS), 1):
        guard.see(step, row)
    assert guard.see(10, {"search/right": 0.0, "search/score": 0.0}, is_whole=False) == []
    assert guard.history.right.values == LEARNS


def test_a_guard_that_is_off_says_nothing():
    assert seen(steps([*LEARNS, 0.0]), enabled=False) == []


@pytest.mark.parametrize("share", [-1e300, -1.0, 2.0, 1e308, math.inf, math.nan])
def test_a_share_that_is_none_is_judged_too(share):
    rows = steps([*LEARNS, share, *LEARNS])
    assert all(math.isnan(share) or sign.cause for _, sign in seen(rows))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_right_answers_that_never_fall_show_no_sign(values):
    assert seen(steps(sorted(values))) == []


_NAMES = (
    "search/right",
    "search/score",
    "search/searches",
    "actor/grad_norm",
    "search/logprob_right",
    "search/masked",
    "search/calls",
    "search/failed_calls",
    "search/logprob",
)
_ANY = st.one_of(st.floats(), st.integers(-(10**6), 10**6), st.booleans(), st.none(), st.text(max_size=3))


@pytest.mark.parametrize("facts", [TrainingFacts(), SHUFFLED])
@given(
    lines=st.lists(st.tuples(st.integers(0, 12), st.dictionaries(st.sampled_from(_NAMES), _ANY)), max_size=25)
)
@example(lines=[(0, {"search/masked": 9e307}), (1, {"search/masked": 9e307})])
@example(lines=[(0, {"search/masked": math.inf}), (1, {"search/masked": -math.inf})])
@example(lines=[(0, {"search/masked": 10**400}), (1, {"actor/grad_norm": -(10**400)})])
@example(lines=[(0, {"search/failed_calls": 1}), (1, {"search/failed_calls": 1})])
def test_whatever_a_logger_wrote_the_guard_answers(facts, lines):
    guard = Guard(GuardOptions(), facts)
    for step, values in lines:
        for sign in guard.see(step, values):
            assert sign.cause and sign.since <= step
        assert guard.history.step == step


@given(st.lists(st.floats(0, 1), min_size=12, max_size=30), st.integers(1, 11))
def test_a_step_that_is_trained_again_replaces_it_and_all_later_ones(values, again):
    first, second = Guard(GuardOptions()), Guard(GuardOptions())
    for step, row in enumerate(steps(values), 1):
        first.see(step, row)
    for step, row in enumerate(steps(values[again:]), again + 1):
        first.see(step, row)
    for step, row in enumerate(steps(values), 1):
        second.see(step, row)
    assert first.history.right == second.history.right
