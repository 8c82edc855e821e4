"""Settings of the matrix libraries that they read once, when they are loaded: call these before torch and
FAISS are imported. A value that the user has set in the environment stays.
"""

from __future__ import annotations

import os


def prefer_reproducible_products() -> None:
    """Ask Intel MKL, torch's matrix library on x86, for products that do not depend on the batch size.

    By default MKL splits a product among threads in a way that depends on its shape, and the last digits
    with it. Its strict reproducible mode ends that. Must be called before torch is imported; a value that
    the user has set stays. Other libraries (CUDA, ARM) ignore it: there a query's scores can differ in the
    last digits from batch to batch, and passages that close in score can change places.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def let_waiting_threads_sleep() -> None:
    """Ask OpenMP for threads that sleep while they wait, instead of turning in a loop.

    Turning saves microseconds where one library has the processor to itself. A server has two, torch that
    encodes and FAISS that searches, each with threads for all cores and at work at the same time: what one
    burns by waiting, the other lacks.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
