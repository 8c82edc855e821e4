"""CPU settings of a process that encodes and searches.

They concern reproducible matrix products, idle threads, and how long a thread holds Python's interpreter
lock.
"""

from __future__ import annotations

import os
import sys


def set_mkl_reproducible() -> None:
    """Ask Intel MKL, torch's matrix library on x86, for products that do not depend on the batch size.

    By default MKL divides a product among threads depending on its shape, which changes the last digits. Its
    strict reproducible mode prevents that on Intel CPUs. On AMD CPUs it has no effect, and other libraries
    (CUDA, ARM) ignore it, so a probe finds out what holds in a process (retrieval_server/determinism.py).
    Call this before torch is imported. A value that the user has set is kept.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def set_passive_wait() -> None:
    """Make the idle threads of GNU's OpenMP runtime, which torch's wheels contain, sleep after about 0.1 ms.

    By default they spin for some milliseconds after each matrix product, in case another one follows, and
    occupy a core that the next search needs. 0.1 ms are enough between two products of an encoder. If threads
    slept at once (`OMP_WAIT_POLICY=passive`), a single client would wait 1.2 times as long
    (docs/results/retrieval_server.md). Call this before torch is imported. Values that the user has set are
    kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def set_switch_interval() -> None:
    """Make Python's interpreter lock available to waiting threads after half a millisecond instead of five.

    Encoding a batch needs the lock some hundreds of times, between its matrix products. Each time, an event
    loop that is busy with requests may hold the lock until the end of the interval.
    """
    sys.setswitchinterval(0.0005)
