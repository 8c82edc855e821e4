"""A model gets as many threads of a CPU as it can use."""

from __future__ import annotations

import pytest

from rag_r1.system import cores
from rag_r1.system.cores import cpu_threads, multiplies_bf16, trainer_threads, usable_cores


def test_a_tiny_model_gets_one_thread_and_any_other_all_cores(tmp_path):
    usable = usable_cores()
    assert cpu_threads(tmp_path / "a name on the Hub") == usable
    for size, threads in ((1000, 1), (200 << 20, usable)):
        with (tmp_path / "model.safetensors").open("wb") as weights:
            weights.truncate(size)
        assert cpu_threads(tmp_path) == threads


def test_the_workers_of_a_trainer_share_the_cores_and_a_tiny_model_leaves_one(tmp_path):
    usable = usable_cores()
    for size, shared in ((1000, usable - 1), (200 << 20, usable)):
        with (tmp_path / "model.safetensors").open("wb") as weights:
            weights.truncate(size)
        for workers in (1, 2, 1000):
            assert trainer_threads(tmp_path, workers) == max(1, shared // workers)


@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        ("avx512f avx512_bf16", True),
        ("amx_bf16", True),
        ("asimd bf16 i8mm", True),
        ("avx2 avx512f", False),
        (None, None),
    ],
)
def test_the_instructions_for_bf16_are_read_from_the_flags_of_the_cpu(tmp_path, monkeypatch, flags, answer):
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"processor : 0\nflags : fpu {flags} sse\n")
    monkeypatch.setattr(cores, "_CPUINFO", cpuinfo)
    assert multiplies_bf16() is answer
