"""A model's server says why it did not start."""

from __future__ import annotations

import pytest

from rag_r1.inference.vllm_server import vllm_server
from rag_r1.runs.errors import RunError


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_server_that_does_not_start_is_an_error_with_the_end_of_its_log(tmp_path):
    pytest.importorskip("vllm")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunError, match=r"vLLM ended with status \d+; the end of .*vllm.log:\n"):
        with vllm_server(tmp_path, tmp_path / "vllm.log"):
            pass
