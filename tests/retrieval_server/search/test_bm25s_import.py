"""JAX, if it is installed, is kept off the GPUs by whatever imports bm25s."""

from __future__ import annotations

import os

import pytest

from ..running import run_python

#: Stands for JAX: bm25s imports jax.lax, and the real one would now choose its device.
JAX = "import os; print('JAX_PLATFORMS', os.environ.get('JAX_PLATFORMS'))"


@pytest.mark.slow
@pytest.mark.parametrize(("variables", "platform"), [({}, "cpu"), ({"JAX_PLATFORMS": "cuda"}, "cuda")])
def test_importing_our_bm25_leaves_jax_on_the_cpu_unless_the_user_says_otherwise(
    tmp_path, monkeypatch, variables, platform
):
    package = tmp_path / "jax"
    package.mkdir()
    (package / "__init__.py").write_text(JAX)
    (package / "lax.py").write_text("def top_k(values, k): return values, k\n")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    written = run_python("import retrieval_server.search.bm25", PYTHONPATH=path, **variables)
    assert f"JAX_PLATFORMS {platform}" in written
