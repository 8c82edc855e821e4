"""The platform "cpu" for veRL.

veRL uses the first registered platform that is available, unless `VERL_PLATFORM` names one. NVIDIA comes
first, and counts as available wherever nvidia-smi runs, even if the installed torch has no CUDA. Therefore
this platform is set before that search if torch is a build for CPUs (`choose_platform`). With a GPU build of
torch it is used only if `VERL_PLATFORM=cpu` is set, and never as a fallback when no GPU is visible.

Ray schedules training workers on "GPU"s. On a CPU these are logical slots (`ray_kwargs.ray_init.num_gpus`)
without hardware behind them.
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

#: Long enough for the slowest step on a laptop. veRL's own default for a process group is ten minutes.
GROUP_TIMEOUT = timedelta(minutes=30)


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """A machine without an accelerator. veRL's `PlatformBase` documents the members."""

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
        """Do nothing: the settings are for the CUDA allocator."""

    def empty_cache(self) -> None:
        device.empty_cache()

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        """Return "gloo". In a training worker, it also creates the default process group.

        From this name veRL builds "cpu:gloo,<device>:<backend>" (verl/utils/distributed.py,
        `initialize_global_process_group`, `initialize_global_process_group_ray`). On this platform that would
        contain the device "cpu" twice, which torch refuses. Right after this call veRL checks whether a group
        exists, and then creates none. So the group is created here, from the variables that veRL sets for
        Ray's workers.
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
        """Do nothing: there is no device profiler."""

    def profiler_stop(self) -> None:
        """Do nothing: there is no device profiler."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # veRL then moves weights to vLLM through shared memory

    def cudart(self) -> Any:
        return None


def built_for_cpus() -> bool:
    """Return whether the installed torch supports only CPUs: no CUDA, no ROCm, no Huawei NPUs."""
    supports_gpus = torch.version.cuda is not None or torch.version.hip is not None
    return not supports_gpus and importlib.util.find_spec("torch_npu") is None


def choose_platform() -> None:
    """Make this veRL's platform if torch supports only CPUs and `VERL_PLATFORM` is not set."""
    if built_for_cpus() and not os.environ.get("VERL_PLATFORM", "").strip():
        set_platform(PlatformCPU())


choose_platform()
