"""Engines over nf4 in this process; left out where bitsandbytes is not installed."""

from __future__ import annotations

import pytest
import torch

from tests.plugin.conftest import lone_worker  # noqa: F401


@pytest.fixture(scope="session")
def qwen(tmp_path_factory) -> str:
    """A model whose layers bitsandbytes quantises."""
    from tests.fakes.small_qwen import save_small_qwen  # here: it imports torch's transformers

    return str(save_small_qwen(tmp_path_factory.mktemp("qwen")))


@pytest.fixture
def worker(lone_worker):  # noqa: F811
    """The group of a training worker that is alone."""
    import verl  # noqa: F401
    from verl.utils.distributed import initialize_global_process_group_ray

    initialize_global_process_group_ray(timeout_second=60)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def free_port():
    from rag_r1.system.child_processes import free_port

    return free_port
