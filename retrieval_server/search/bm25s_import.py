"""Imports bm25s without letting it use the GPUs.

If JAX is installed, bm25s tries JAX's top-k when it is imported. JAX then reserves three quarters of the
memory of every GPU that it finds, beside a training or an encoder that needs it, and nothing here uses it:
hits are chosen with numpy. A value of JAX_PLATFORMS that the user has set is kept.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import bm25s  # noqa: E402

__all__ = ["bm25s"]
