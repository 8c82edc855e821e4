"""A setting of the matrix library that it reads once, when it is loaded: call this before torch and FAISS
are imported. A value that the user has set in the environment stays.
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
