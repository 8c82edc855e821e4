"""A supervised training whose processes are killed ends with all its steps, as an undisturbed one does.

One real training of four steps by `rag-r1 train --supervise` in each trainer mode. After its first checkpoint
the worker that holds the weights is killed, after the second one veRL's trainer itself.
"""

from __future__ import annotations

import signal

import pytest

from rag_r1.runs.processes import find_leftovers
from rag_r1.runs.rollout_metrics import rollouts_file
from rag_r1.training.checkpoint_steps import last_whole_step
from tests.chaos.supervised_run import STEPS, SupervisedRun
from tests.chaos.test_async_trainers import MODES as ASYNC_MODES
from tests.e2e.demo_training import QUESTIONS
from tests.e2e.left_behind import step_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(2400)]

_ASYNC = ("trainer.v1.sampler.custom_sampler.name=SearchReplayBufferAsync",)
MODES = {
    "sync": (),
    "colocate_async": ("trainer.v1.trainer_mode=search_colocate_async", *_ASYNC),
    "separate_async": (
        "trainer.v1.trainer_mode=search_separate_async",
        *_ASYNC,
        "algorithm.rollout_correction.bypass_mode=false",
        *(override for override in ASYNC_MODES["separate_async"] if "trainer_mode" not in override),
    ),
}


@pytest.fixture(scope="module", params=MODES)
def supervised(request, demo_index, make_module_server, tmp_path_factory) -> SupervisedRun:
    """The finished training."""
    folder, server = tmp_path_factory.mktemp("supervised"), make_module_server()
    run = SupervisedRun(folder, demo_index / "data", server.url, MODES[request.param])
    run.start()
    try:
        for step, name in ((1, "ray::WorkerDict"), (2, "ray::TaskRunner")):
            # A step is logged after its checkpoint: killed in between, its metrics would be lost.
            run.wait_until(lambda step=step: (last_whole_step(run.folder) or 0) >= step in run.logged)
            run.send(signal.SIGKILL, name)
            run.wait_until(lambda step=step: len(run.attempts()) > step)
        assert run.wait() == 0, run.text()[-3000:]
    finally:
        run.kill()
    return run


def test_it_ends_with_all_steps_and_a_checkpoint_of_the_last(supervised):
    assert supervised.logged >= set(range(1, STEPS + 1)) and last_whole_step(supervised.folder) == STEPS


def test_each_attempt_goes_on_from_the_last_checkpoint_of_the_one_before(supervised):
    first, second, third = supervised.attempts()
    assert (first.first, third.ending) == (0, "finished") and 1 <= second.first <= third.first < STEPS
    assert all("ended with status" in attempt.ending for attempt in (first, second))
    assert not any(attempt.changes for attempt in supervised.attempts())


def test_no_process_of_a_killed_attempt_is_left(supervised):
    assert find_leftovers(supervised.folder) == []


def test_each_batch_was_written_before_its_step_with_what_the_step_then_says(supervised):
    for path in supervised.folder.glob("metrics-*.jsonl"):
        batches, logged = step_metrics(rollouts_file(path)), step_metrics(path)
        if supervised.has_steps_in_parts:
            assert not batches, "a part of a step is too few questions to judge by"
            continue
        assert set(batches) >= set(logged) - {0}
        for step in set(batches) & set(logged):
            assert batches[step]["search/score"] == logged[step]["search/score"]


def test_every_step_is_trained_on_as_many_questions_as_an_undisturbed_one(supervised):
    for path in supervised.folder.glob("metrics-*.jsonl"):
        for metrics in step_metrics(path).values():
            assert metrics["search/samples"] % QUESTIONS == 0 and metrics["search/lost"] == 0
