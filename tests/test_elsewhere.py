"""The tests where the processor or the parent is another one (tests/elsewhere.sh)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
#: What depends on the products of a processor, or on what a process inherits.
SENSITIVE = (
    "system/test_child_processes.py::test_the_server_ends_with_the_command_whatever_ends_that",
    "sft/test_traces_command.py::test_an_interrupted_run_waits_for_what_is_under_way_and_asks_nothing_twice",
    "runs/test_processes.py",
    "retrieval_server/encode/test_encoder.py",
    "retrieval_server/encode/test_openvino_model.py",
    "retrieval_server/test_determinism.py",
    "retriever/training/test_loss.py",
)
INHERITED = """
import json, os, resource, signal, sys, tempfile
umask = os.umask(0)
print(json.dumps({
    "ignored": [number.name for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
                if signal.getsignal(number) is signal.SIG_IGN],
    "stdin": sys.stdin is not None,
    "umask": umask,
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "cores": len(os.sched_getaffinity(0)),
    "temporary": tempfile.gettempdir(),
    "home": os.access(os.path.expanduser("~"), os.W_OK),
    "terminal": "TERM" in os.environ,
}))
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="left out: taskset and /proc are Linux's")


def elsewhere(*words: str, **environment: str) -> subprocess.CompletedProcess:
    command = ["bash", str(TESTS / "elsewhere.sh"), *words]
    process = subprocess.Popen(
        command,
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate()
    finally:
        if process.returncode is None:  # the tests are told to end: what the command runs ends with it
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@linux
def test_a_command_gets_little_from_such_a_parent_whose_temporary_folder_goes_with_it(tmp_path):
    done = elsewhere("parent", sys.executable, "-c", INHERITED, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    inherited = json.loads(done.stdout)
    temporary = inherited.pop("temporary")
    assert temporary.startswith(f"{tmp_path}/") and " " in temporary and list(tmp_path.iterdir()) == []
    assert inherited == {
        "ignored": ["SIGINT", "SIGHUP"],
        "stdin": False,
        "umask": 0o077,
        "files": 1024,
        "cores": 1,
        "home": False,
        "terminal": False,
    }


@linux
def test_the_status_is_that_of_the_command():
    assert elsewhere("parent", "sh", "-c", "exit 7").returncode == 7
    assert elsewhere("processor", "sh", "-c", "exit 7").returncode == 7
    assert elsewhere("nowhere").returncode == 2


@linux
@pytest.mark.slow
def test_torch_takes_the_instructions_of_the_other_processor():
    torch = pytest.importorskip("torch")
    if not torch.cpu._is_avx2_supported():
        pytest.skip("left out: this processor has no AVX2")
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    assert elsewhere("processor", sys.executable, "-c", code).stdout == "AVX2\n"


@pytest.mark.parametrize("name", SENSITIVE)
def test_what_is_chosen_for_another_machine_is_there(name):
    file, _, function = name.partition("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    assert f"def {function}(" in text if function else "def test_" in text


@linux
@pytest.mark.slow
@pytest.mark.nightly
def test_what_depends_on_processor_or_parent_passes_elsewhere():
    paths = [str(TESTS / name) for name in SENSITIVE]
    options = ["-q", "-p", "no:cacheprovider", "-m", "not full and not nightly"]
    done = elsewhere("both", sys.executable, "-m", "pytest", *options, *paths)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:] + done.stderr
