"""Signals of a trajectory: log-probs of thoughts, calls and answers, and the rewards of a group."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Trajectory, Turn
from rag_r1.agent.tokens.ledger import Ledger
from rag_r1.agent.tokens.signals import group_signals, part_logprobs, signals
from rag_r1.protocols import Document, load_protocol

PROTOCOL = load_protocol("rag_r1_mq")
CALL = "<think> I need both. </think>\n<search> Ada, Bo </search>"
ANSWER = "<think> I know. </think>\n<answer> 1901 </answer>"


def decode(ids) -> str:
    return "".join(map(chr, ids))


def played(turns, logprob=lambda character: -1.0, size: int = 1) -> tuple[list[Turn], Ledger]:
    """Turns whose tokens are their characters, with an observation after each."""
    ledger = Ledger([1])
    for number, turn in enumerate(turns):
        ledger.append_generated([ord(c) for c in turn.text], [logprob(c) for c in turn.text], number)
        ledger.append_observed([65, 66], number)
    return turns, ledger


def of(turns, **how):
    turns, ledger = played(turns, **how)
    return part_logprobs(turns, ledger.spans(), PROTOCOL, decode)


def test_each_token_counts_in_the_part_of_the_turn_in_which_it_stands():
    parts = of([Turn.searched(CALL, ["Ada", "Bo"]), Turn(ANSWER, "answer")])
    thoughts = CALL.index("<search>") + ANSWER.index("<answer>")
    assert parts["thought"] == [-float(thoughts), float(thoughts)]
    assert parts["call"][1] == len(CALL) - CALL.index("<search>")
    assert parts["answer"][1] == len(ANSWER) - ANSWER.index("<answer>")


def test_a_turn_that_does_nothing_is_a_thought_as_a_whole():
    text = "I write <search> and stop"
    assert of([Turn(text, "invalid")]) == {"thought": [-float(len(text)), float(len(text))]}


def test_a_token_that_crosses_the_tag_belongs_to_the_block():
    ledger = Ledger([1])
    ledger.append_generated([0, 1, 2], [-1.0, -2.0, -4.0], 0)
    texts = ["think ", "it <sea", "rch> Ada </search>"]
    turns = [Turn.searched("".join(texts), ["Ada"])]
    parts = part_logprobs(turns, ledger.spans(), PROTOCOL, lambda ids: "".join(texts[i] for i in ids))
    assert parts == {"thought": [-1.0, 1.0], "call": [-6.0, 2.0]}


def test_without_log_probs_of_the_engine_there_are_none():
    ledger = Ledger([1])
    ledger.append_generated([65, 66], None, 0)
    assert part_logprobs([Turn(ANSWER, "answer")], ledger.spans(), PROTOCOL, decode) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([CALL, ANSWER, "", "x<answer>", "</think>"]),
            st.sampled_from(["search", "answer", "invalid", "call", "plan"]),
        ),
        max_size=5,
    ),
    st.floats(-9, 0),
)
def test_the_parts_hold_every_generated_token_once(pairs, value):
    turns = [Turn(text, action) for text, action in pairs]
    parts = of(turns, logprob=lambda character: value)
    assert sum(values[1] for values in parts.values()) == sum(len(turn.text) for turn in turns)
    for total, count in parts.values():
        assert total == pytest.approx(value * count)


def test_the_record_carries_them_and_gives_the_signals():
    record = Trajectory("q#0", "When?", "rag_r1_mq", generated_tokens=30, observed_tokens=70)
    record.turns = [
        Turn.searched(CALL, ["Ada", "Bo"], [[Document("1", "Ada")], [Document("2", "Bo")]]),
        Turn("x", "invalid"),
        Turn(ANSWER, "answer"),
    ]
    record.turns[0].calls[1].cached = True
    record.rewards, record.logprobs = {"score": 1.0}, {"thought": [-10.0, 20.0], "answer": [-2.0, 10.0]}
    again = Trajectory.from_dict(record.to_dict())
    assert again == record and again.logprobs is not record.logprobs
    found = signals(again, lambda documents: len(documents) / 4)
    assert found == {
        "logprob_thought": -0.5,
        "logprob_call": None,
        "logprob_answer": -0.2,
        "logprob": pytest.approx(-0.4),
        "generated_tokens": 30,
        "queries_per_search": 2.0,
        "observed_share": 0.7,
        "cached_calls": 0.5,
        "retrieval_recall": 0.5,
    }


def test_an_episode_that_never_began_has_the_same_names_and_no_values():
    empty = signals(Trajectory("q#0", "When?", "rag_r1_mq", rewards={"score": None}))
    assert set(empty) == set(
        signals(Trajectory("q", "?", "p", rewards={"score": 1.0}), lambda documents: 1.0)
    )
    assert set(empty.values()) == {None}


def test_a_group_with_equal_rewards_is_without_signal():
    figures = group_signals({"a": [1.0, 0.0], "b": [1.0, 1.0], "c": [0.0]})
    assert figures == {"group_deviation": 0.25, "groups_without_signal": 0.5}
    assert group_signals({"c": [0.0]}) == {}


@given(
    st.dictionaries(
        st.text(max_size=3), st.lists(st.floats(-5, 5), min_size=2, max_size=6), min_size=1, max_size=5
    )
)
def test_groups_are_without_signal_exactly_where_they_do_not_deviate(groups):
    figures = group_signals(groups)
    assert figures["groups_without_signal"] == sum(max(g) == min(g) for g in groups.values()) / len(groups)
    assert math.isfinite(figures["group_deviation"]) and figures["group_deviation"] >= 0
