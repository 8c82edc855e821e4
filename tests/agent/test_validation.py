"""Numbers of numpy and booleans, which parts of others return, become plain ones."""

from __future__ import annotations

import sys

import numpy as np

from rag_r1.agent import Generation
from rag_r1.agent.validation import checked_generation


def test_ids_and_log_probs_become_plain_numbers():
    ids, logprobs = np.array([7, 0, 1]), [np.float32(-0.5), np.float64(-1.0), -2]
    checked = checked_generation(Generation(ids, logprobs), 8)
    assert checked == Generation([7, 0, 1], [-0.5, -1.0, -2.0])
    assert {type(value) for value in checked.token_ids} == {int}
    assert {type(value) for value in checked.logprobs} == {float}
    assert type(checked_generation(Generation([True]), 8).token_ids[0]) is int


def test_finite_log_probs_may_have_a_sum_that_is_not():
    logprobs = [-sys.float_info.max] * 3
    assert checked_generation(Generation([1, 2, 3], logprobs), 8).logprobs == logprobs
