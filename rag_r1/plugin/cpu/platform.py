"""The platform "cpu" for veRL.

veRL takes the first of the registered platforms that is available (`VERL_PLATFORM` overrides this). NVIDIA
comes first and counts as available wherever nvidia-smi runs, whatever this environment's torch supports. So
if torch is a CPU build, this platform is set before that search (`choose_platform`). With a GPU build of
torch it is used only if `VERL_PLATFORM=cpu` is set, never as a fallback when no GPU is visible. Ray schedules
training workers on "GPU"s; on a CPU these are logical slots (`ray_kwargs.ray_init.num_gpus`) without hardware
behind them.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry, set_platform

from rag_r1.plugin.cpu import device

# Long enough for the slowest step on a laptop; veRL's own default for a group is ten minutes.
GROUP_TIMEOUT = timedelta(minutes=30)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """A machine without an accelerator. The members are those of veRL's `PlatformBase`, which describes
    them."""

    device_name = "cpu"
    vendor_name = "cpu"

    @property
    def device_module(self) -> ModuleType:
        return device

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return built_for_cpus()

    def current_device(self) -> str:
        return device.current_device()

    def device_count(self) -> int:
        return device.device_count()

    def set_device(self, device_index: int) -> None:
        device.set_device(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        device.synchronize(device_index)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Does nothing: the settings are for the CUDA allocator."""

    def empty_cache(self) -> None:
        device.empty_cache()

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        """Returns "gloo"; in a training worker the default process group exists after this call.

        veRL builds from this name "cpu:gloo,<device>:<backend>" (verl/utils/distributed.py,
        `initialize_global_process_group`, `initialize_global_process_group_ray`), which here would contain
        the device "cpu" twice, and torch refuses that. veRL creates no group if one exists, and checks right
        after this call: so the group is created here, from the variables that veRL sets for Ray's workers.
        """
        in_worker = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
        if in_worker and not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "cpu:gloo",
                rank=int(os.environ["RANK"]),
                world_size=int(os.environ["WORLD_SIZE"]),
                init_method=os.environ.get("DIST_INIT_METHOD"),
                timeout=GROUP_TIMEOUT,
            )
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """Does nothing: there is no device profiler."""

    def profiler_stop(self) -> None:
        """Does nothing: there is no device profiler."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # veRL then moves weights to vLLM through shared memory

    def cudart(self) -> Any:
        return None


def built_for_cpus() -> bool:
    """Whether this environment's torch supports only CPUs: no CUDA, no ROCm, no Huawei NPUs."""
    supports_gpus = torch.version.cuda is not None or torch.version.hip is not None
    return not supports_gpus and importlib.util.find_spec("torch_npu") is None


def choose_platform() -> None:
    """Sets this as veRL's platform if torch supports no other, unless `VERL_PLATFORM` is set."""
    if built_for_cpus() and not os.environ.get("VERL_PLATFORM", "").strip():
        set_platform(PlatformCPU())


choose_platform()
