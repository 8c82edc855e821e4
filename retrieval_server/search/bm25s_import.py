"""Imports bm25s without letting it use the GPUs.

If JAX is installed, bm25s tries JAX's top-k function when it is imported. JAX then reserves three quarters of
the memory of every GPU, which a training or an encoder may need, although hits are chosen with numpy here. So
JAX is limited to the CPU, unless the user has set JAX_PLATFORMS.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import bm25s  # noqa: E402

__all__ = ["bm25s"]
