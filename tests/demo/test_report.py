"""What the report reads from a run's records."""

from __future__ import annotations

import json
import os

from rag_r1.demo.report import read_records, summarise


def write(path, records, time_s):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"half of a li')
    os.utime(path, (time_s, time_s))


def record(id_, em, step=3):
    return {
        "id": id_,
        "step": step,
        "data_source": "demo/one_hop",
        "rewards": {"em": em},
        "turns": [],
        "seconds": 1.0,
    }


def test_a_step_that_was_played_again_after_a_crash_counts_once(tmp_path):
    write(tmp_path / "step_000003-900.jsonl", [record("a#0", 0.0), record("a#1", 0.0)], time_s=1)
    write(tmp_path / "step_000003-100.jsonl", [record("a#0", 1.0), record("b#0", 1.0)], time_s=2)
    (records,) = read_records(tmp_path).values()
    assert {r["id"]: r["rewards"]["em"] for r in records} == {"a#0": 1.0, "a#1": 0.0, "b#0": 1.0}


def test_a_trajectory_without_a_reward_is_not_counted_as_wrong():
    assert summarise([record("a", 1.0), record("b", None)])["EM all"] == 1.0
