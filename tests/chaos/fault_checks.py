"""What a training with faults, in three lives, must have left behind: each check raises AssertionError, or
KeyError for a metric that is not there.

Read are the metrics of each life, the trajectories, and what the actor was trained on (`actor.jsonl`). What
no file tells is handed over: where each life began, what the proxy did, and how often the server was killed.
tests/chaos/test_fault_checks.py spoils each of them and sees that a check notices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rag_r1.agent.records import read_records
from tests.e2e.left_behind import (
    FinishedRun,
    generated,
    json_lines,
    question,
    step_metrics,
    texts_of_records,
    texts_of_rows,
)


@dataclass(frozen=True)
class FaultyRun(FinishedRun):
    """The finished training."""

    lives: tuple[str, ...]  # names of their metrics, `<name>.jsonl`
    checkpoints: Sequence[int]  # the last whole checkpoint when each life began
    answers: Mapping[str, int]  # those of the proxy, by fault
    kills: int  # of the retrieval server
    steps: int
    questions: int
    group: int

    @property
    def samples(self) -> int:
        return self.questions * self.group

    @property
    def folder(self) -> Path:
        return self.out / "trajectories" / "train"

    @cached_property
    def metrics_of_lives(self) -> list[dict[int, dict[str, float]]]:
        return [step_metrics(self.out / f"{name}.jsonl") for name in self.lives]

    @cached_property
    def metrics(self) -> dict[int, dict[str, float]]:
        """Of all lives, by step."""
        return {step: data for life in self.metrics_of_lives for step, data in life.items()}

    @cached_property
    def all_records(self) -> list[dict[str, Any]]:
        """Every record that was dumped, also of what was played twice."""
        return list(read_records(self.folder))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """What the actor was trained on, without the rows that pad a batch."""
        return [row for row in json_lines(self.out / "actor.jsonl") if generated(row)]


def each_life_goes_on_after_the_last_checkpoint_and_all_steps_are_done_once(run: FaultyRun) -> None:
    done = list(map(sorted, run.metrics_of_lives))
    assert done[0] == [1]
    assert run.checkpoints == [0, 1, 2] and done[2] == [3, 4]
    assert done[1] in ([2], [])  # killed when the checkpoint was whole; its metrics are written after it
    tracker = run.out / "checkpoints" / "latest_checkpointed_iteration.txt"
    assert tracker.read_text() == str(run.steps)


def a_step_that_was_cut_off_is_played_again_and_no_question_is_asked_in_two_steps(run: FaultyRun) -> None:
    cut_off, again = sorted(run.folder.glob("step_000002-*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    assert set(map(question, read_records(cut_off))) <= set(map(question, read_records(again)))
    questions = [name for records in run.trained.values() for name in set(map(question, records))]
    assert len(questions) == len(set(questions))


def everything_that_was_to_fail_did(run: FaultyRun) -> None:
    assert run.kills == 3
    assert all(run.answers[fault] for fault in ("none", "delayed", "500", "truncated", "shape", "away"))
    kinds = Counter(note["kind"] for record in run.all_records for note in record["failures"])
    assert kinds["retriever"] and kinds["engine"]
    assert sum(record["retries"] for record in run.all_records)
    assert not kinds["error"] and not kinds["judge"]


def every_sample_is_finished_or_flagged_and_kept_out_of_the_batch(run: FaultyRun) -> None:
    assert set(run.metrics) >= {1, 3, 4}
    for data in run.metrics.values():
        batches = 1 + data.get("search/refilled_batches", 0)
        assert data["search/samples"] == run.samples and data["search/lost"] == 0 and batches <= 6
        masked = round(data["search/masked"] * run.samples)
        assert masked <= data["search/left_out"] < run.samples
        # A lonely sibling leaves with the others: at most one for each group.
        assert data["search/left_out"] - masked <= run.questions


def failures_in_the_records_are_those_that_the_metrics_count(run: FaultyRun) -> None:
    for step in set(run.trained) & set(run.metrics):
        if run.metrics[step].get("search/refilled_batches"):
            continue  # the metrics are those of the last batch, the records of all
        counted = run.metrics[step]
        for kind in ("retriever", "engine"):
            failed = sum(any(n["kind"] == kind for n in r["failures"]) for r in run.trained[step])
            assert round(counted[f"search/failed_{kind}"] * run.samples) == failed
        masked = sum(record["rewards"]["score"] is None for record in run.trained[step])
        assert round(counted["search/masked"] * run.samples) == masked


def the_actor_is_trained_on_no_masked_trajectory_and_on_each_other_one_once(run: FaultyRun) -> None:
    left = sum(run.samples - data["search/left_out"] for data in run.metrics.values())
    if 2 in run.metrics:  # otherwise that life was killed before it wrote what step 2 had left out
        assert len(run.rows) == left
    whole = [record for records in run.trained.values() for record in records if not record["failures"]]
    assert len(run.rows) >= len(whole) - run.questions * run.steps
    # By their texts. Step 4, whose records the full disk has cost, is all that is trained on without one.
    trained_on = texts_of_rows(run.rows, run.tokenizer)
    expected = texts_of_records(usable(run.trained))
    del expected[""]
    assert not expected - trained_on
    assert sum((trained_on - expected).values()) <= run.samples - run.metrics[4]["search/left_out"]


def what_a_full_disk_costs_is_counted_and_the_rest_of_the_dump_is_whole(run: FaultyRun) -> None:
    assert run.metrics[4]["search/undumped"] == 1.0 and 4 not in run.trained
    assert run.metrics[3]["search/undumped"] == 0.0
    for step in (1, 2, 3):
        records = run.trained[step]
        refilled = round(run.metrics.get(step, {}).get("search/refilled_batches", 0))
        expected = run.samples * (1 + refilled)
        assert len(records) == len({record["id"] for record in records}) == expected
    for path in run.folder.glob("step_*.jsonl"):
        names = [record["id"] for record in read_records(path)]
        assert len(names) == len(set(names))


def usable(records: Mapping[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The trajectories that are not masked, without those whose siblings all are."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for step, played in records.items():
        for record in played:
            if record["rewards"]["score"] is not None:
                groups[step, question(record)].append(record)
    return [record for group in groups.values() if len(group) > 1 for record in group]


CHECKS = (
    each_life_goes_on_after_the_last_checkpoint_and_all_steps_are_done_once,
    a_step_that_was_cut_off_is_played_again_and_no_question_is_asked_in_two_steps,
    everything_that_was_to_fail_did,
    every_sample_is_finished_or_flagged_and_kept_out_of_the_batch,
    failures_in_the_records_are_those_that_the_metrics_count,
    the_actor_is_trained_on_no_masked_trajectory_and_on_each_other_one_once,
    what_a_full_disk_costs_is_counted_and_the_rest_of_the_dump_is_whole,
)
