"""A model gets as many threads of a CPU as it can use."""

from __future__ import annotations

from rag_r1.system.cores import cpu_threads, trainer_threads, usable_cores


def test_a_tiny_model_gets_one_thread_and_any_other_all_cores(tmp_path):
    cores = usable_cores()
    assert cpu_threads(tmp_path / "a name on the Hub") == cores
    for size, threads in ((1000, 1), (200 << 20, cores)):
        with (tmp_path / "model.safetensors").open("wb") as weights:
            weights.truncate(size)
        assert cpu_threads(tmp_path) == threads


def test_the_workers_of_a_trainer_share_the_cores_and_a_tiny_model_leaves_one(tmp_path):
    cores = usable_cores()
    for size, shared in ((1000, cores - 1), (200 << 20, cores)):
        with (tmp_path / "model.safetensors").open("wb") as weights:
            weights.truncate(size)
        for workers in (1, 2, 1000):
            assert trainer_threads(tmp_path, workers) == max(1, shared // workers)
