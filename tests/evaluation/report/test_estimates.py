"""Means and intervals of a few numbers."""

from __future__ import annotations

import math

import pytest

from rag_r1.evaluation.report.estimates import known_mean, wilson_interval


def test_the_interval_of_a_share_is_wilsons():
    assert wilson_interval(0.5, 160) == pytest.approx((0.4234, 0.5766), abs=1e-4)
    assert wilson_interval(0.0, 40) == pytest.approx((0.0, 0.0876), abs=1e-4)


def test_a_mean_is_of_the_known_values_only():
    assert known_mean([1.0, None, 0.0]) == 0.5
    assert math.isnan(known_mean([None]))
