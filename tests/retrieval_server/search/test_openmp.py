"""The OpenMP runtimes that a process has loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from retrieval_server.search.openmp import openmp_runtimes

from ..running import run_python


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")
def test_the_runtime_of_faiss_is_found_in_a_process_with_it_and_none_in_one_without():
    # In a process of its own: where torch was imported first, FAISS may use the runtime of torch.
    code = "import faiss, retrieval_server.search.openmp as openmp; print(openmp.openmp_runtimes())"
    assert "omp" in run_python(code)
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as bare:
        try:
            assert openmp_runtimes(bare.pid) == []
        finally:
            bare.communicate(b"\n")
    with pytest.raises(OSError):
        openmp_runtimes(bare.pid)
