"""What the report reads from a run's records."""

from __future__ import annotations

from rag_r1.demo.report import summarise


def record(id_, em):
    fields = {"id": id_, "question": "?", "protocol": "rag_r1_mq", "step": 3, "turns": [], "seconds": 1.0}
    return fields | {"data_source": "demo/one_hop", "rewards": {"em": em}}


def test_a_trajectory_without_a_reward_is_not_counted_as_wrong():
    assert summarise([record("a", 1.0), record("b", None)]).em == 1.0
