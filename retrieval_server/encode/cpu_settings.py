"""CPU settings of a process that encodes and searches."""

from __future__ import annotations

import os
import sys


def set_mkl_reproducible() -> None:
    """Ask Intel MKL, torch's matrix library on x86, for products that do not depend on the batch size.

    By default MKL divides a product among threads in a way that depends on its shape, which changes the last
    digits. Its strict reproducible mode prevents that on Intel CPUs; on AMD's it changes nothing, and other
    libraries (CUDA, ARM) ignore it. What holds in a process is found out by trying:
    retrieval_server/determinism.py. Call it before torch is imported; a value that the user has set is kept.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def set_passive_wait() -> None:
    """Let the idle threads of GNU's OpenMP runtime, which torch's wheels bring, sleep after about 0.1 ms.

    By default they spin for some milliseconds after each product, in case another follows, and so take a core
    from the search that follows instead. Between two products of an encoder 0.1 ms is enough; with threads
    that sleep at once (`OMP_WAIT_POLICY=passive`) a single client waits 1.2 times as long
    (docs/results/retrieval_server.md). Call it before torch is imported; what the user has set is kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def set_switch_interval() -> None:
    """Let a thread that waits for Python's interpreter lock get it after half a millisecond instead of five.

    Encoding a batch needs the lock some hundreds of times, between two products, and each time an event loop
    that is busy with requests may hold it to the end of the interval.
    """
    sys.setswitchinterval(0.0005)
