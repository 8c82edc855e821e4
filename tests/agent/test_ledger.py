"""The ledger keeps what it is given, in order, with its provenance."""

import pytest

from rag_r1.agent import Ledger


def test_spans_are_appended_with_their_mask_and_log_probs():
    ledger = Ledger([1, 2])
    ledger.generated([3, 4], [-0.3, -0.4])
    ledger.observed([5])
    ledger.generated([6], [-0.6])
    assert ledger.context() == [1, 2, 3, 4, 5, 6]
    row = ledger.row()
    assert (row.prompt_ids, row.response_ids) == ([1, 2], [3, 4, 5, 6])
    assert (row.response_mask, row.response_logprobs) == ([1, 1, 0, 1], [-0.3, -0.4, 0.0, -0.6])


def test_the_mask_does_not_look_at_ids():
    ledger = Ledger([0])
    ledger.generated([0, 0])
    ledger.observed([0])
    assert ledger.row().response_mask == [1, 1, 0]


def test_one_generation_without_log_probs_leaves_the_row_without():
    ledger = Ledger([1])
    ledger.generated([2], [-0.2])
    ledger.generated([], None)
    assert ledger.row().response_logprobs == [-0.2]
    ledger.generated([3], None)
    ledger.observed([4])
    ledger.generated([5], [-0.5])
    assert ledger.row().response_logprobs is None


@pytest.mark.parametrize("logprobs", [[], [-0.1], [-0.1, -0.2, -0.3]])
def test_log_probs_that_do_not_match_the_tokens_are_an_error(logprobs):
    with pytest.raises(ValueError, match="2 generated tokens but"):
        Ledger([1]).generated([2, 3], logprobs)


def test_the_row_that_was_handed_out_does_not_change_later():
    ledger = Ledger([1])
    ledger.generated([2])
    row = ledger.row()
    ledger.observed([3])
    assert (row.prompt_ids, row.response_ids, row.response_mask) == ([1], [2], [1])


def test_the_context_grows_in_place_and_leaves_the_prompt_alone():
    prompt = [1]
    ledger = Ledger(prompt)
    context = ledger.context()
    ledger.generated([2])
    ledger.observed([3])
    assert ledger.context() is context and context == [1, 2, 3], "a copy a turn would cost tokens times turns"
    assert prompt == ledger.row().prompt_ids == [1]
