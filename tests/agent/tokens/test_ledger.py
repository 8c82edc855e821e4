"""The ledger keeps what it is given, in order, with its provenance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Capacity, Ledger, TrainingRow


def test_spans_are_appended_with_their_mask_and_log_probs():
    ledger = Ledger([1, 2])
    ledger.append_generated([3, 4], [-0.3, -0.4])
    ledger.append_observed([5])
    ledger.append_generated([6], [-0.6])
    assert ledger.context() == [1, 2, 3, 4, 5, 6]
    row = ledger.row()
    assert (row.prompt_ids, row.response_ids) == ([1, 2], [3, 4, 5, 6])
    assert (row.response_mask, row.response_logprobs) == ([1, 1, 0, 1], [-0.3, -0.4, 0.0, -0.6])


def test_the_mask_does_not_look_at_ids():
    ledger = Ledger([0])
    ledger.append_generated([0, 0])
    ledger.append_observed([0])
    assert ledger.row().response_mask == [1, 1, 0]


def test_one_generation_without_log_probs_leaves_the_row_without():
    ledger = Ledger([1])
    ledger.append_generated([2], [-0.2])
    ledger.append_generated([], None)
    assert ledger.row().response_logprobs == [-0.2]
    ledger.append_generated([3], None)
    ledger.append_observed([4])
    ledger.append_generated([5], [-0.5])
    assert ledger.row().response_logprobs is None


@pytest.mark.parametrize("logprobs", [[], [-0.1], [-0.1, -0.2, -0.3]])
def test_log_probs_that_do_not_match_the_tokens_are_an_error(logprobs):
    with pytest.raises(ValueError, match="2 generated tokens but"):
        Ledger([1]).append_generated([2, 3], logprobs)


def test_the_row_that_was_handed_out_does_not_change_later():
    ledger = Ledger([1])
    ledger.append_generated([2])
    row = ledger.row()
    ledger.append_observed([3])
    assert (row.prompt_ids, row.response_ids, row.response_mask) == ([1], [2], [1])


def test_the_context_grows_in_place_and_leaves_the_prompt_alone():
    prompt = [1]
    ledger = Ledger(prompt)
    context = ledger.context()
    ledger.append_generated([2])
    ledger.append_observed([3])
    assert ledger.context() is context and context == [1, 2, 3], "a copy a turn would cost tokens times turns"
    assert prompt == ledger.row().prompt_ids == [1]


def test_a_rewritten_context_opens_a_row_of_its_own():
    ledger = Ledger([1, 2])
    ledger.append_generated([3], [-0.3], turn=0)
    ledger.append_observed([4], turn=0)
    ledger.append_generated([5], [-0.5], turn=1)
    ledger.rewrite([1, 2, 5])
    assert ledger.context() == [1, 2, 5] and ledger.first_prompt == [1, 2]
    ledger.append_generated([6], [-0.6], turn=2)
    first, second = ledger.rows()
    assert first == TrainingRow([1, 2], [3, 4, 5], [1, 0, 1], [-0.3, 0.0, -0.5])
    assert second == TrainingRow([1, 2, 5], [6], [1], [-0.6])
    assert [(span.ids, span.generated, span.turn) for span in ledger.spans()] == [
        ((3,), True, 0),
        ((4,), False, 0),
        ((5,), True, 1),
        ((6,), True, 2),
    ]
    with pytest.raises(ValueError, match="there are 2 rows"):
        ledger.row()


def test_a_row_in_which_nothing_was_generated_is_not_trained_on():
    ledger = Ledger([1])
    ledger.append_generated([2])
    ledger.rewrite([1, 2])
    ledger.append_observed([3])
    assert [row.response_ids for row in ledger.rows()] == [[2]]
    untouched = Ledger([1])
    assert untouched.rows() == [TrainingRow([1], [], [], [])], "unless there is no other"


@pytest.mark.parametrize(
    ("capacity", "room"), [(Capacity(3, None), 3), (Capacity(9, 4), 2), (Capacity(None, 4), 2)]
)
def test_a_row_takes_no_more_than_it_can_hold(capacity, room):
    ledger = Ledger([1, 2], capacity)
    assert ledger.room == room
    with pytest.raises(ValueError, match="the row can take"):
        ledger.append_observed([0] * (room + 1))
    ledger.append_generated([0] * room)
    assert (ledger.room, len(ledger.context())) == (0, 2 + room)
    with pytest.raises(ValueError, match="the row can take"):
        ledger.append_generated([0])
    if capacity.context_tokens:
        with pytest.raises(ValueError, match="leaves no room"):
            ledger.rewrite([0] * capacity.context_tokens)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("generated"), st.lists(st.integers(0, 99), max_size=4), st.booleans()),
        st.tuples(st.just("append_observed"), st.lists(st.integers(0, 99), max_size=4), st.just(False)),
        st.tuples(st.just("rewrite"), st.lists(st.integers(0, 99), min_size=1, max_size=3), st.just(False)),
    ),
    max_size=12,
)


@given(STEPS)
def test_every_generated_token_is_trained_on_once_in_the_context_in_which_it_was_generated(steps):
    ledger, sampled, contexts = Ledger([7]), [], []
    for kind, ids, with_logprobs in steps:
        if kind == "generated":
            # Each token is told apart by its log-prob.
            logprobs = [-float(len(sampled) + i) for i in range(len(ids))]
            contexts += [[*ledger.context(), *ids[:i]] for i in range(len(ids))]
            sampled += zip(ids, logprobs, strict=True)
            ledger.append_generated(ids, logprobs if with_logprobs or ids else None)
        else:
            getattr(ledger, kind)(ids)
    trained, prefixes = [], []
    for row in ledger.rows():
        assert len(row.response_ids) == len(row.response_mask) == len(row.response_logprobs)
        for place, bit in enumerate(row.response_mask):
            if bit:
                trained.append((row.response_ids[place], row.response_logprobs[place]))
                prefixes.append(row.prompt_ids + row.response_ids[:place])
            else:
                assert row.response_logprobs[place] == 0.0
    assert trained == sampled and prefixes == contexts
    assert ledger.generated_tokens == len(sampled) == sum(len(s.ids) for s in ledger.spans() if s.generated)
    assert ledger.observed_tokens == sum(len(s.ids) for s in ledger.spans() if not s.generated)


def test_the_last_generated_token_of_each_turn_is_found_where_the_row_has_it():
    ledger = Ledger([1, 2])
    ledger.append_generated([3, 4], turn=0)
    ledger.append_observed([5, 6, 7], turn=0)
    ledger.append_generated([], turn=1)
    ledger.append_generated([8], turn=2)
    ledger.append_observed([9], turn=2)
    assert ledger.turn_ends(4) == [(0, 1), None, (0, 5), None]
    assert ledger.turn_ends(1) == [(0, 1)]
    ledger.rewrite([1])
    ledger.append_observed([2], turn=2)  # a row in which nothing is generated is not trained
    ledger.rewrite([1])
    ledger.append_observed([2, 3], turn=2)
    ledger.append_generated([4, 5, 6], turn=3)
    assert ledger.turn_ends(4) == [(0, 1), None, (0, 5), (1, 4)] and len(ledger.rows()) == 2
