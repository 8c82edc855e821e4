"""Before any test imports torch: the matrix library as the retrieval server and its builds set it.

Property tests try as many examples as they say, or hypothesis' 100, however long one takes: a busy machine
is no failure. `HYPOTHESIS_PROFILE`, which `tests/run.sh` sets, changes that for those that name no number:
`quick`, of the tier `unit`, makes it 10, `full` 300 and `nightly` 1,000. Where an example takes long,
property_limits.py has a limit for all tiers but `nightly`.

A test that takes long is `slow` or `full`, marked or not: durations.txt has the seconds (durations.py).

A test run that is told to end (SIGTERM, as from `timeout` or `kill`) ends its tests first, so that no
training or server that they started is left running.
"""

import gc
import os
import signal
import threading

import pytest
from hypothesis import settings

from retrieval_server.encode.cpu_settings import set_mkl_reproducible
from tests import durations

#: A check that fails shows its values, as an assertion in a test does.
CHECKS = (
    "tests.chaos.async_checks",
    "tests.chaos.fault_checks",
    "tests.chaos.tool_checks",
    "tests.e2e.dapo_and_lora_checks",
    "tests.e2e.export_checks",
    "tests.e2e.judged_checks",
    "tests.e2e.memory_checks",
    "tests.e2e.own_reward_checks",
    "tests.e2e.probe_checks",
    "tests.e2e.rewriting_checks",
    "tests.e2e.run_checks",
    "tests.e2e.stage_checks",
    "tests.plugin.sft_batch_checks",
)

set_mkl_reproducible()
settings.register_profile("unhurried", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("full", deadline=None, max_examples=300)
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unhurried"))


def pytest_configure():
    # Here, since a process may call pytest more than once (shares.py), and each call rewrites for itself.
    pytest.register_assert_rewrite(*CHECKS)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: pytest.exit("told to end by SIGTERM", 143))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    """A command under test may set its own handler for SIGTERM; it must not outlive the test."""
    before = signal.getsignal(signal.SIGTERM)
    result = yield
    if signal.getsignal(signal.SIGTERM) is not before:
        signal.signal(signal.SIGTERM, before)
    return result


@pytest.fixture
def interruptible():
    """What the test starts can be interrupted (SIGINT), also where the tests themselves cannot.

    A shell without job control lets its background jobs ignore SIGINT (tests/run.sh starts one of its two
    processes so); processes inherit that, and Python then raises no KeyboardInterrupt. A handler, as it is
    set here, is not inherited: children begin with the default.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items):
    seconds_of = durations.read()
    for item in items:
        seconds = seconds_of.get(item.nodeid.partition("[")[0])
        if seconds and not any(item.get_closest_marker(tier) for tier in ("e2e", "nightly")):
            item.add_marker("full" if seconds >= durations.FULL else "slow")


def pytest_collection_finish():
    """What was imported stays until the end: the garbage collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this repository."""
    from tests.wheel.wheel_environments import build_wheel

    return build_wheel(tmp_path_factory.mktemp("dist"))
