"""A model's server says why it did not start."""

from __future__ import annotations

import pytest

from rag_r1.inference.vllm_server import cpu_threads, vllm_server
from rag_r1.runs.errors import RunError
from rag_r1.system.cores import usable_cores


def test_a_tiny_model_gets_one_thread_and_any_other_all_cores(tmp_path):
    cores = usable_cores()
    assert cpu_threads(tmp_path / "a name on the Hub") == cores
    for size, threads in ((1000, 1), (200 << 20, cores)):
        with (tmp_path / "model.safetensors").open("wb") as weights:
            weights.truncate(size)
        assert cpu_threads(tmp_path) == threads


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_server_that_does_not_start_is_an_error_with_the_end_of_its_log(tmp_path):
    pytest.importorskip("vllm")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunError, match=r"vLLM ended with status \d+; the end of .*vllm.log:\n"):
        with vllm_server(tmp_path, tmp_path / "vllm.log"):
            pass
