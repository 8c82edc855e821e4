"""A training in which everything fails that can: it ends with all its steps, and every sample is accounted
for.

One training of four steps in three lives. All through it, 30 % of the retrieval server's answers are spoilt,
the server is killed three times, and the engine aborts one request in seven, raises at some, and is gone for
one episode in eight. The first life ends inside step 2 by SIGKILL of the driver, the second between steps 2
and 3 by SIGKILL of every process at once; in the last the disk is full from step 4 on. What it must have left
behind stands in fault_checks.py.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rag_r1.demo.policy import policy_path
from tests.chaos.fault_checks import CHECKS, FaultyRun
from tests.e2e.demo_training import GROUP, QUESTIONS, Training

# Bounded in time; generous, for a busy machine takes several times what a quiet one does.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(2400)]

STEPS = 4
OVERRIDES = (
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
    "trainer.resume_mode=auto",
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
def trained(demo_index, make_module_server, make_proxy, tmp_path_factory) -> FaultyRun:
    """The finished training."""
    out = tmp_path_factory.mktemp("training")
    loops = out / "agent_loops.yaml"
    # By the name that the rows have for their agent loop, which takes the place of the default one.
    loops.write_text("- {name: search_agent, _target_: tests.chaos.faulty_loop.FaultySearchAgentLoop}\n")
    overrides = (*OVERRIDES, f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}")
    server = make_module_server()
    checkpoints = []
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
    return FaultyRun(
        out,
        policy_path("rag_r1_mq"),
        lives=tuple(ending.__name__ for ending, _ in LIVES),
        checkpoints=checkpoints,
        answers=proxy.counts,
        kills=server.kills,
        steps=STEPS,
        questions=QUESTIONS,
        group=GROUP,
    )


def inside_a_step(life: Training) -> None:
    life.wait(lambda: life.checkpoint() == 1 and bool(life.dumped(2)), LIFE_S)
    life.kill(everything=False)


def between_steps(life: Training) -> None:
    life.wait(lambda: life.checkpoint() == 2, LIFE_S)
    life.kill(everything=True)


def files_of_living_processes(files: list[Path]) -> list[Path]:
    """A life that was killed between two steps may have begun the later one, and left a file of it."""
    return [file for file in files if Path("/proc", file.stem.rpartition("-")[2]).exists()]


def full_disk(life: Training) -> None:
    life.wait(lambda: bool(files_of_living_processes(life.dumped(3))), LIFE_S)
    (third,) = files_of_living_processes(life.dumped(3))
    fourth = third.with_name(third.name.replace("step_000003", "step_000004"))
    fourth.symlink_to("/dev/full")
    try:
        assert life.finish(LIFE_S) == 0, life.tail()
    finally:
        fourth.unlink()  # it reads as zeros without end


#: How each life ends, and how often the server is killed in it.
LIVES = [(inside_a_step, 1), (between_steps, 1), (full_disk, 1)]


class killed:
    """For the length of the block: after the first answers the server is killed, and started again when a
    request has found it away. A life has at least sixteen searches, so this happens in every life."""

    def __init__(self, server, proxy, times: int, answers: int = 3):
        self.server, self.proxy, self.times, self.answers = server, proxy, times, answers
        self.over, self.thread = threading.Event(), threading.Thread(target=self.run)

    def run(self) -> None:
        for _ in range(self.times):
            if not self.counted("none", self.answers):
                return
            self.server.kill()
            missed = self.counted("away", 1)
            self.server.start()
            if not missed:
                return

    def counted(self, answer: str, more: int) -> bool:
        """Wait until there are so many more; False if the block ends before."""
        until = self.proxy.counts[answer] + more
        while self.proxy.counts[answer] < until:
            if self.over.wait(0.02):
                return False
        return True

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        self.thread.join()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_finished_training(trained, check):
    check(trained)
