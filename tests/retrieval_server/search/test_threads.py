"""Threads by the size of a batch, and the runtimes that a process has loaded."""

from __future__ import annotations

import subprocess
import sys

import faiss
import pytest

from retrieval_server.search.threads import Threads, loaded_runtimes

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")


@pytest.mark.parametrize(
    "alone, together, expected",
    [(None, None, []), (1, None, [1, 7, 7]), (None, 3, [7, 3, 3]), (1, 2, [1, 2, 2])],
)
def test_a_query_alone_and_a_batch_have_their_own_numbers(alone, together, expected):
    told = []
    threads = Threads(told.append, lambda: 7, alone, together)
    for queries in (1, 2, 64):
        threads.use_for(queries)
    assert told == expected
    assert threads.differ == (alone != together)


def test_faiss_uses_the_number_that_it_is_told():
    before = faiss.omp_get_max_threads()
    try:
        threads = Threads(faiss.omp_set_num_threads, faiss.omp_get_max_threads, 1, 2)
        for queries, number in ((1, 1), (8, 2), (1, 1)):
            threads.use_for(queries)
            assert faiss.omp_get_max_threads() == number
    finally:
        faiss.omp_set_num_threads(before)


@linux
def test_the_runtime_of_faiss_is_found_in_a_process_with_it_and_none_in_one_without():
    # In a process of its own: where torch was imported first, FAISS may use the runtime of torch.
    code = "import faiss, retrieval_server.search.threads as threads; print(threads.loaded_runtimes())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "omp" in found.stdout
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as bare:
        try:
            assert loaded_runtimes(bare.pid) == []
        finally:
            bare.communicate(b"\n")
    with pytest.raises(OSError):
        loaded_runtimes(bare.pid)
