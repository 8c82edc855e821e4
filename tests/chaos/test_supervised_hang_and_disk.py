"""A supervised training that hangs, and whose disk is then full, ends with all its steps, as an undisturbed
one does: it ends the hanging processes by itself, and goes on by the same command once there is room.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from rag_r1.runs.processes import find_leftovers
from rag_r1.training.checkpoint_steps import last_whole_step
from tests.chaos.small_disk import small_disk
from tests.chaos.supervised_run import STEPS, SupervisedRun

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs"),
]
#: For the checkpoints of all steps, and longer than a start takes.
SIZE, HANG_S = 1 << 30, 240


@pytest.fixture
def run_and_disk(demo_index, make_module_server, tmp_path) -> Iterator[tuple]:
    limits = (f"rag_r1.guard.hang_s={HANG_S}", "rag_r1.guard.hang_factor=2")
    with small_disk(tmp_path / "disk", SIZE) as disk:
        run = SupervisedRun(disk.path, demo_index / "data", make_module_server().url, limits)
        try:
            yield run, disk
        finally:
            run.kill()


def test_a_hang_is_ended_and_a_full_disk_told_and_the_run_ends_with_all_steps(run_and_disk):
    run, disk = run_and_disk
    run.start()
    # A step is logged after its checkpoint: stopped in between, its metrics would be lost.
    run.wait_until(lambda: last_whole_step(run.folder) == 1 and 1 in run.logged)
    run.send(signal.SIGSTOP, "ray::TaskRunner")
    run.wait_until(lambda: len(run.attempts()) > 1)
    assert run.attempts()[0].ending == "it hung" and run.attempts()[1].first >= 1

    run.wait_until(lambda: (last_whole_step(run.folder) or 0) >= 2 and 2 in run.logged)
    disk.fill()
    assert run.wait() == 1
    (message,) = [line for line in run.text().splitlines() if line.startswith("error: ")]
    for part in ("No space left on device", "make room", "run the same command again"):
        assert part in message
    assert find_leftovers(run.folder) == []
    saved = last_whole_step(run.folder)
    assert saved < STEPS

    disk.clear()
    run.start()
    assert run.wait() == 0, run.text()[-3000:]
    assert last_whole_step(run.folder) == STEPS and run.attempts()[-1].first == saved
    assert run.logged >= set(range(1, STEPS + 1))
    assert find_leftovers(run.folder) == []
