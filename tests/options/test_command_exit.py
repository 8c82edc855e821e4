"""Every command ends in the same way: with which status, and with what it says."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rag_r1.options.command_exit import CommandError, command_main

ROOT = Path(__file__).parents[2]


class WrongFileError(ValueError):
    """What a user can mend."""


@command_main(WrongFileError)
def main(error: BaseException | None = None) -> int:
    """A command that raises `error`."""
    if error is not None:
        raise error
    print("done")
    return 3


@command_main(resumable=True)
def outer(error: BaseException | None = None) -> int:
    """A command that goes on with what another returned."""
    return 10 + main(error)


@pytest.mark.parametrize(
    "error, status, said",
    [
        (None, 3, ""),
        (WrongFileError("a.json is wrong\x1b[2J"), 1, "error: a.json is wrong\ufffd[2J\n"),
        (CommandError("no such thing", status=2), 2, "error: no such thing\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_a_command_returns_and_says(capsys, error, status, said):
    assert main(error) == status
    assert capsys.readouterr().err == said


def test_a_full_disk_is_told_with_its_remedy(capsys):
    assert main(OSError(errno.ENOSPC, "No space left on device", "out/a.json")) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: cannot use out/a.json: No space left on device; make room")


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), FileNotFoundError(2, "x"), BrokenPipeError(32, "of another")]
)
def test_any_other_error_is_a_bug_and_keeps_its_traceback(error):
    with pytest.raises(type(error)):
        main(error)


def test_a_command_within_another_leaves_ctrl_c_to_that(capsys):
    assert outer(WrongFileError("wrong")) == 11
    assert outer(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "error: wrong\ninterrupted: run the same command again to go on\n"
    assert outer() == 13, "the next one is an outer one again"


def test_the_handler_of_the_caller_is_back_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    main(WrongFileError("wrong"))
    assert signal.getsignal(signal.SIGTERM) is before


def start(code: str, **more) -> subprocess.Popen:
    """A process with a command of this code, which prints `begun`."""
    program = f"""
import sys, time
from rag_r1.options.command_exit import command_main

@command_main()
def main() -> int:
    try:
        print("begun", flush=True)
        {code}
    finally:
        print("tidied up", file=sys.stderr)
    return 0

sys.exit(main())
"""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_command_orderly(number, status):
    # A signal that comes just before a sleep does not end it, so the sleeps are short.
    with start("while True: time.sleep(0.1)") as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.stderr.read() == "tidied up\n"
    assert process.returncode == status


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("end", ["return 0", "sys.exit(0)"])
def test_a_reader_that_has_gone_ends_a_command_without_a_traceback(unbuffered, end):
    with start(f"time.sleep(0.2); print('more'); {end}", PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout.readline() == "begun\n"
        process.stdout.close()
        assert process.stderr.read() == "tidied up\n"
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="left out: there is no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_on_a_full_disk_is_told_without_a_traceback(unbuffered):
    """Python flushes at its exit, outside the command's own handling of errors."""
    program = """
import sys
from rag_r1.options.command_exit import command_main

@command_main()
def main() -> int:
    print("a result")
    return 0

sys.exit(main())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, env=env
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: cannot write: No space left") and ended.stderr.count("\n") == 1
