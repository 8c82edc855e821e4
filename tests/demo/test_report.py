"""What the report reads from a run's records."""

from __future__ import annotations

import pytest

from rag_r1.demo.report import summarise, wilson


def record(id_, em):
    fields = {"id": id_, "question": "?", "protocol": "rag_r1_mq", "step": 3, "turns": [], "seconds": 1.0}
    return fields | {"data_source": "demo/one_hop", "rewards": {"em": em}}


def test_a_trajectory_without_a_reward_is_not_counted_as_wrong():
    assert summarise([record("a", 1.0), record("b", None)]).em == 1.0


def test_the_interval_of_a_share_is_wilsons():
    assert wilson(0.5, 160) == pytest.approx((0.4234, 0.5766), abs=1e-4)
    assert wilson(0.0, 40) == pytest.approx((0.0, 0.0876), abs=1e-4)
