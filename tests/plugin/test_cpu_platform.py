"""The platform "cpu", its device module and its FSDP engines, in this process and with a group of one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("this machine has a GPU: its platform is veRL's own", allow_module_level=True)

import verl  # noqa: F401  (loads the plugin)
from transformers import Qwen2ForCausalLM
from verl.plugin.platform import PlatformRegistry, get_platform
from verl.utils.device import get_device_id, get_device_name, get_nccl_backend, get_torch_device
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry

from rag_r1.plugin.value_model import CUDAEngineWithValueHead


def test_verl_detects_the_cpu_where_there_is_no_accelerator():
    platform = get_platform()
    assert type(platform).__name__ == "PlatformCPU"
    assert type(platform).__abstractmethods__ == frozenset(), "each member that veRL asks for is defined"
    assert get_device_name() == get_device_id() == "cpu"
    assert torch.zeros(2).to(get_device_id()).device == torch.device("cpu")
    assert platform.is_ipc_supported() is False, "weights go through shared memory"
    assert platform.ray_resource_options(1) == {"num_gpus": 1}, "workers run on logical slots"


def test_the_device_module_reports_memory_of_machine_and_process():
    device = get_torch_device()
    free, total = device.mem_get_info()
    assert 0 < free <= total
    assert 0 < device.memory_allocated() <= total
    assert device.max_memory_allocated() > 0 and device.memory_reserved() > 0


def test_the_device_module_restores_its_random_state():
    device = get_torch_device()
    state = device.get_rng_state()
    first = torch.rand(3)
    device.set_rng_state(state)
    assert torch.equal(first, torch.rand(3))


def test_the_device_module_passes_on_what_torch_cpu_has():
    with get_torch_device().stream(get_torch_device().current_stream()):
        pass
    with pytest.raises(AttributeError):
        _ = get_torch_device().no_such_thing


def test_outside_a_training_worker_no_process_group_is_made(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert get_nccl_backend() == "gloo"
    assert not torch.distributed.is_initialized()


@pytest.fixture
def worker(lone_worker):
    """The variables of a training worker that is alone, and the group that the platform makes from them."""
    from verl.utils.distributed import initialize_global_process_group_ray

    initialize_global_process_group_ray(timeout_second=60)
    yield
    torch.distributed.destroy_process_group()


def make_engine(model_type: str, folder: str, *, forward_only: bool):
    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    engine = EngineRegistry.new(
        model_type,
        "fsdp2",
        model_config=HFModelConfig(
            path=folder, model_type=model_type, load_tokenizer=False, use_remove_padding=False,
            enable_gradient_checkpointing=False, override_config={"attn_implementation": "sdpa"},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2", forward_only=forward_only, mixed_precision=fp32, model_dtype="fp32",
            use_torch_compile=False,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=1),
        checkpoint_config=None,
    )  # fmt: skip
    engine.initialize()
    return engine


def test_verl_joins_the_group_that_the_platform_made(worker):
    assert torch.distributed.get_world_size() == 1
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    assert total.item() == 1


@pytest.mark.slow
@pytest.mark.parametrize("forward_only", [False, True], ids=["actor", "reference"])
def test_a_language_model_gives_the_logits_of_the_saved_model(worker, model_folder, forward_only):
    engine = make_engine("language_model", model_folder, forward_only=forward_only)
    assert engine.engine_config.forward_only is forward_only
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        expected = Qwen2ForCausalLM.from_pretrained(model_folder, dtype=torch.float32)(ids).logits
        assert torch.allclose(engine.module(ids).logits, expected, atol=1e-5)


def test_a_value_model_gives_one_value_a_token_and_learns(worker, model_folder):
    engine = make_engine("value_model", model_folder, forward_only=False)
    ids = torch.arange(12).reshape(2, 6)
    config = engine.module.config
    assert config._attn_implementation == "sdpa"
    assert config.summary_dropout_prob == 0.0, "veRL's own settings of a critic hold, too"
    before = engine.module(ids).logits
    assert before.shape == (2, 6, 1)
    ((before - 1.0) ** 2).mean().backward()
    engine.optimizer.step()
    after = engine.module(ids).logits
    assert ((after - 1.0) ** 2).mean() < ((before - 1.0) ** 2).mean()


def test_on_nvidias_gpus_our_critic_goes_before_verls_own_where_it_is_loaded(monkeypatch):
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "cuda")
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "nvidia")
    for backend in ("fsdp", "fsdp2"):
        assert EngineRegistry.get_engine_cls("value_model", backend) is CUDAEngineWithValueHead
        actor = EngineRegistry.get_engine_cls("language_model", backend)
        assert actor.__module__.startswith("verl."), "the actor's engine needs no other attention"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "device"), [("", "cpu"), pytest.param("nvidia", "cuda", marks=pytest.mark.full)]
)
def test_a_torch_for_cpus_stays_on_the_cpu_beside_an_nvidia_smi(tmp_path, wanted: str, device: str):
    """As veRL's driver does it: import, detect, set `trainer.device`. Without the plugin it would be cuda."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU 0: Stub'\n")
    smi.chmod(0o755)
    program = (
        "import verl; from omegaconf import OmegaConf; from verl.utils.device import auto_set_device\n"
        "config = OmegaConf.create({'trainer': {'device': 'cpu'}}); auto_set_device(config)\n"
        "print(config.trainer.device)"
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "VERL_PLATFORM": wanted}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[-1:] == [device], done.stderr


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_a_torch_for_gpus_gets_the_cpu_only_if_it_is_asked_for(monkeypatch, cuda):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert PlatformRegistry.get("cpu")().is_platform_available() is (cuda is None)
