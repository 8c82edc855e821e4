"""Jobs on hostile data end within their limits, and the next job finds a worker."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rag_r1.sandbox import worker_pool as module
from rag_r1.sandbox.job_paths import path_argument, path_of
from rag_r1.sandbox.worker_pool import JobError, JobLimits, LimitError, WorkerPool
from tests.fakes.waiting import wait_until

JOBS = "tests.sandbox.jobs_for_tests"
LIMITS = JobLimits(cpu_s=5.0)
SHORT = JobLimits(cpu_s=0.1, memory_bytes=1 << 30, answer_bytes=1 << 20)


@pytest.fixture(scope="module")
def jobs():
    pool = WorkerPool(2)
    yield lambda name, *arguments, limits=LIMITS: pool.call(f"{JOBS}:{name}", arguments, limits)
    pool.close()


def test_a_worker_is_used_again(jobs):
    assert jobs("add", 1, 2) == 3
    assert jobs("process") == jobs("process") != os.getpid()


@pytest.mark.slow
def test_a_worker_of_a_large_process_is_used_again_too(jobs):
    pool, held = WorkerPool(1), bytearray(b"x") * (600 << 20)
    assert pool.call(f"{JOBS}:process", [], LIMITS) == pool.call(f"{JOBS}:process", [], LIMITS)
    pool.close()
    assert len(held) == 600 << 20


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("spin", "it takes more than 0.1 s of processor time", marks=pytest.mark.slow),
        ("fill", "it needs more than 1,024 MiB of memory"),
        ("abort", "it needs more than 1,024 MiB of memory, or its worker has a fault"),
        ("crash", r"its worker crashed \(status -11\)"),
        ("large", "it gives more than 1 MiB"),
    ],
)
def test_a_job_beyond_its_limits_is_ended_with_the_reason_and_the_next_one_is_done(jobs, name, why):
    before = jobs("process")
    with pytest.raises(LimitError, match=why):
        jobs(name, limits=SHORT)
    assert jobs("process") != before and jobs("add", 1, 2) == 3


def test_a_job_that_waits_is_ended_too(jobs, monkeypatch):
    monkeypatch.setattr(module, "_WAIT_S", 0.2)
    with pytest.raises(LimitError, match="it did not end in time"):
        jobs("wait", limits=SHORT)
    monkeypatch.undo()
    assert jobs("add", 1, 2) == 3


@pytest.mark.parametrize("kind", ["OSError", "ValueError", "RecursionError"])
def test_what_a_job_raises_is_told_and_its_worker_goes_on(jobs, kind):
    before = jobs("process")
    with pytest.raises(JobError, match="why") as error:
        jobs("fail", kind)
    assert error.value.kind == kind and jobs("process") == before


def test_a_worker_has_no_keys_and_what_it_prints_is_no_answer(jobs, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    fresh = WorkerPool(1)
    assert "OPENAI_API_KEY" not in fresh.call(f"{JOBS}:environment", [], LIMITS)
    fresh.close()
    assert jobs("chatter") == "\ud800 ok"


@pytest.mark.slow
def test_a_worker_that_was_killed_or_has_grown_is_replaced(jobs):
    pool = WorkerPool(1)
    first = pool.call(f"{JOBS}:process", [], LIMITS)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: Path(f"/proc/{first}/stat").read_text().split()[2] == "Z")
    second = pool.call(f"{JOBS}:process", [], LIMITS)
    assert pool.call(f"{JOBS}:grow", [], LIMITS) == 600 << 20
    assert len({first, second, pool.call(f"{JOBS}:process", [], LIMITS)}) == 3
    pool.close()


def test_calls_of_many_threads_share_the_workers(jobs):
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: (jobs("add", n, 1), jobs("process")), range(40)))
    assert [value for value, _ in results] == list(range(1, 41))
    assert len({process for _, process in results}) <= 2


def test_a_job_can_be_begun_and_cancelled(jobs):
    pool = WorkerPool(1)
    job = pool.start(f"{JOBS}:spin", [], LIMITS)
    assert pool.try_start(f"{JOBS}:process", [], LIMITS) is None, "the only worker is busy"
    job.cancel()
    assert pool.call(f"{JOBS}:add", [1, 2], LIMITS) == 3
    pool.close()


def test_a_worker_to_which_no_job_could_be_sent_is_ended_and_its_place_is_free(jobs):
    pool = WorkerPool(1)
    worker = pool.call(f"{JOBS}:process", [], LIMITS)
    with pytest.raises(TypeError):
        pool.call(f"{JOBS}:add", [object(), 2], LIMITS)
    assert not Path(f"/proc/{worker}").exists()
    assert pool.call(f"{JOBS}:add", [1, 2], LIMITS) == 3
    pool.close()


def test_a_worker_ends_with_its_parent_however_that_ends():
    program = (
        "import sys, threading; from rag_r1.sandbox.worker_pool import JobLimits, WorkerPool\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "pool = WorkerPool(1)\n"
        f"print(pool.call('{JOBS}:process', [], JobLimits(5.0)), flush=True)\n"
        f"pool.call('{JOBS}:wait', [], JobLimits(600.0))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        worker = int(parent.stdout.readline())
        parent.kill()
    status = Path(f"/proc/{worker}/stat")
    wait_until(lambda: not status.exists() or status.read_text().split()[2] == "Z")


def test_a_process_that_forks_has_workers_of_its_own(jobs):
    pool = WorkerPool(1)
    here = pool.call(f"{JOBS}:process", [], LIMITS)
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(write, str(pool.call(f"{JOBS}:process", [], LIMITS)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(read, 100)) != here == pool.call(f"{JOBS}:process", [], LIMITS)
    os.close(read), os.close(write)
    pool.close()


@pytest.mark.parametrize("name", [b"/a/b", b"/\xff \xe4\n", "/\u00e4\u2028".encode()])
def test_a_path_of_any_bytes_is_the_same_in_a_job(name):
    argument = path_argument(os.fsdecode(name))
    assert os.fsencode(path_of(argument)) == name and argument.encode("utf-8")
