"""A training in which everything fails that can: it ends with all its steps, and every sample is accounted
for.

One training of four steps in three lives. All through it, 30 % of the retrieval server's answers are spoilt,
the server is killed three times, and the engine aborts one request in ten and raises at some. The first life
ends inside step 2 by SIGKILL of the driver, the second between steps 2 and 3 by SIGKILL of every process at
once; in the last the disk is full from step 4 on.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from demo_training import GROUP, QUESTIONS, Training

from rag_r1.records import read_records, records_by_step

# Bounded in time; generous, for a busy machine takes several times what a quiet one does.
pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(2400)]

STEPS, SAMPLES = 4, QUESTIONS * GROUP
OVERRIDES = (
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
    "trainer.resume_mode=auto",
    "actor_rollout_ref.rollout.agent.default_agent_loop=faulty_search_agent",
    # Few retries, and a request for each turn, so that faults of all kinds come and some failures stay.
    "rag_r1.retriever.retries=0",
    "rag_r1.retriever.gather_s=0",
    "rag_r1.retriever.timeout_s=2",
    "rag_r1.failures.retries=1",
    "rag_r1.failures.wait_s=0.2",
    "trainer.v1.sampler.sampler_kwargs.refill_wait_s=2",
)
LIFE_S = 700


@pytest.fixture(scope="module")
def trained(demo_index, make_module_server, make_proxy, tmp_path_factory):
    """The finished training: its folder, the metrics of its lives, and what the proxy and the server did."""
    out = tmp_path_factory.mktemp("training")
    loops = out / "agent_loops.yaml"
    loops.write_text("- {name: faulty_search_agent, _target_: faulty_loop.FaultySearchAgentLoop}\n")
    overrides = (*OVERRIDES, f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}")
    server = make_module_server()
    lives, checkpoints = [], []
    with make_proxy(server.url, rate=0.3, delay_s=2.5) as proxy:
        for ending, kills in LIVES:
            life = Training(out, ending.__name__, demo_index / "data", proxy.url, overrides)
            checkpoints.append(life.checkpoint())
            try:
                life.start()
                with killed(server, proxy, kills):
                    ending(life)
            finally:
                life.stop()
            lives.append(life.steps())
    return SimpleNamespace(out=out, lives=lives, checkpoints=checkpoints, counts=proxy.counts, server=server)


def inside_a_step(life: Training) -> None:
    life.wait(lambda: life.checkpoint() == 1 and bool(life.dumped(2)), LIFE_S)
    life.kill(everything=False)


def between_steps(life: Training) -> None:
    life.wait(lambda: life.checkpoint() == 2, LIFE_S)
    life.kill(everything=True)


def full_disk(life: Training) -> None:
    life.wait(lambda: bool(life.dumped(3)), LIFE_S)
    (third,) = life.dumped(3)
    fourth = third.with_name(third.name.replace("step_000003", "step_000004"))
    fourth.symlink_to("/dev/full")
    try:
        assert life.finish(LIFE_S) == 0, life.tail()
    finally:
        fourth.unlink()  # it reads as zeros without end


#: How each life ends, and how often the server is killed in it.
LIVES = [(inside_a_step, 1), (between_steps, 1), (full_disk, 1)]


class killed:
    """For the length of the block: after some answers the server is killed and, a second later, started
    again."""

    def __init__(self, server, proxy, times: int, answers: int = 12):
        self.server, self.proxy, self.times, self.answers = server, proxy, times, answers
        self.over, self.thread = threading.Event(), threading.Thread(target=self.run)

    def run(self) -> None:
        for _ in range(self.times):
            until = self.proxy.counts["none"] + self.answers
            while self.proxy.counts["none"] < until:
                if self.over.wait(0.02):
                    return
            self.server.kill()
            time.sleep(1)
            self.server.start()

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        self.thread.join()


def test_each_life_goes_on_after_the_last_checkpoint_and_all_steps_are_done_once(trained):
    done = list(map(sorted, trained.lives))
    assert done[0] == [1]
    assert trained.checkpoints == [0, 1, 2] and done[2] == [3, 4]
    assert done[1] in ([2], [])  # killed when the checkpoint was whole; its metrics are written after it
    tracker = trained.out / "checkpoints" / "latest_checkpointed_iteration.txt"
    assert tracker.read_text() == str(STEPS)


def test_a_step_that_was_cut_off_is_played_again_and_no_question_is_asked_in_two_steps(trained):
    folder = trained.out / "trajectories" / "train"
    cut_off, again = sorted(folder.glob("step_000002-*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    assert questions(read_records(cut_off)) <= questions(read_records(again))
    records = records_by_step(folder)
    asked = [question for step in records for question in questions(records[step])]
    assert len(asked) == len(set(asked))


def test_everything_that_was_to_fail_did(trained):
    assert trained.server.kills == 3
    assert all(trained.counts[fault] for fault in ("none", "delayed", "500", "truncated", "shape", "away"))
    records = all_records(trained.out)
    kinds = Counter(note["kind"] for record in records for note in record["failures"])
    assert kinds["retriever"] and sum(record["retries"] for record in records)
    assert not kinds["error"] and not kinds["judge"]


def test_every_sample_is_finished_or_flagged_and_kept_out_of_the_batch(trained):
    steps = {step: data for life in trained.lives for step, data in life.items()}
    assert set(steps) >= {1, 3, 4}
    for data in steps.values():
        batches = 1 + data.get("search/refilled_batches", 0)
        assert data["search/samples"] == SAMPLES and data["search/lost"] == 0 and batches <= 6
        masked = round(data["search/masked"] * SAMPLES)
        assert masked <= data["search/left_out"] < SAMPLES
        # A lonely sibling leaves with the others: at most one for each group.
        assert data["search/left_out"] - masked <= QUESTIONS


def test_the_actor_is_trained_on_no_masked_trajectory_and_on_each_other_one_once(trained):
    records = records_by_step(trained.out / "trajectories" / "train")
    by_step = {step: data for life in trained.lives for step, data in life.items()}
    rows = lines(trained.out / "actor.jsonl")
    trained_on = Counter(map(generated, rows))
    trained_on.pop((), None)  # rows that pad a batch
    left = sum(SAMPLES - by_step[step]["search/left_out"] for step in by_step)
    if 2 in by_step:  # otherwise that life was killed before it wrote what step 2 had left out
        assert sum(trained_on.values()) == left
    whole = [record for step in records for record in records[step] if not record["failures"]]
    assert sum(trained_on.values()) >= len(whole) - QUESTIONS * STEPS


def test_what_a_full_disk_costs_is_counted_and_the_rest_of_the_dump_is_whole(trained):
    records = records_by_step(trained.out / "trajectories" / "train")
    steps = {step: data for life in trained.lives for step, data in life.items()}
    assert steps[4]["search/undumped"] == 1.0 and 4 not in records
    assert steps[3]["search/undumped"] == 0.0
    for step in (1, 2, 3):
        expected = SAMPLES * (1 + round(steps.get(step, {}).get("search/refilled_batches", 0)))
        assert len(records[step]) == len({record["id"] for record in records[step]}) == expected


def generated(row: dict) -> tuple[int, ...]:
    return tuple(t for t, m in zip(row["responses"], row["response_mask"], strict=True) if m)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def questions(records: Iterable[dict]) -> set[str]:
    return {record["id"].rpartition("#")[0] for record in records}


def all_records(out: Path) -> list[dict]:
    """Every record that was dumped, also of what was played twice."""
    return list(read_records(out / "trajectories" / "train"))
