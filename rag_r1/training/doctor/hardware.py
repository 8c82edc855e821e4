"""The checks of the machine by `rag-r1 doctor`: GPUs, their driver, memory, and the Ray cluster in use."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rag_r1.system import gpu_driver
from rag_r1.system.installation import flash_attn_command, setup_command, version_of
from rag_r1.training.doctor.findings import MISSING, WARNING, Finding, ok

GIB = 1 << 30
#: The peak memory of training a million parameters on a CPU is 6 to 9 GiB, most of it for imports.
MEMORY_GIB = 8.0
#: Ray keeps its object store in shared memory, of which containers have only 64 MiB by default.
SHM_GIB = 1.0


def check_driver() -> Iterator[Finding]:
    """Check that the driver is new enough, if the machine has a GPU that is to be used. torch need not be
    installed."""
    driver = gpu_driver.driver_version()
    if driver is None or ignores_gpu():
        return
    cuda = None
    with suppress(Exception):  # a torch that is installed and cannot be imported is reported by check_gpu
        import torch

        cuda = torch.version.cuda
    needed = gpu_driver.oldest_driver(cuda)
    if gpu_driver.too_old(driver, needed):
        text = f"{driver}, but CUDA {cuda or gpu_driver.CUDA} needs series {needed} or newer"
        remedy = (
            "install a newer NVIDIA driver (another environment does not help); on data-centre GPUs the"
            f" package cuda-compat-{gpu_driver.CUDA}-0 is enough: then set RAG_R1_OLD_DRIVER=1"
        )
        yield Finding("gpu driver", MISSING, text, remedy)
    else:
        yield ok("gpu driver", driver)


def check_gpu() -> Iterator[Finding]:
    """Check that torch can use the GPU, if the machine has one."""
    if shutil.which("nvidia-smi") is None:
        return
    try:
        import torch
    except Exception as error:  # one of CUDA's libraries is missing, or of another version
        yield Finding("torch", MISSING, f"cannot be imported: {error!r}", setup_command())
        return

    if ignores_gpu():
        yield ok("gpu", "there is one; this environment is for CPUs, and training runs on the CPU")
    elif torch.cuda.is_available():
        yield ok("gpu", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
        if version_of("flash-attn") is None:
            yield flash_attn_finding()
    elif torch.version.cuda is None:
        text = "nvidia-smi is here, but this torch is a build for CPUs: training would run on the CPU"
        yield Finding("gpu", WARNING, text, setup_command("gpu"))
    else:
        driver = gpu_driver.driver_version()
        if driver and gpu_driver.too_old(driver, gpu_driver.oldest_driver(torch.version.cuda)):
            return  # reported by check_driver
        text = f"nvidia-smi is here, but torch (CUDA {torch.version.cuda}) sees no GPU"
        remedy = "check `nvidia-smi` and CUDA_VISIBLE_DEVICES; a container must be started with --gpus all"
        yield Finding("gpu", MISSING, text, remedy)


def flash_attn_finding() -> Finding:
    """Return the finding that flash-attn is missing. The remedy depends on whether it can be compiled here.
    The finding is a warning only, because the preflight refuses a training that needs flash-attn."""
    nvcc, release = gpu_driver.nvcc_release()
    if release and release.startswith(f"{gpu_driver.CUDA}."):
        remedy = flash_attn_command()
    else:
        compiler = f"{nvcc} is of CUDA {release}" if nvcc else "no nvcc was found"
        toolkit = f"install the CUDA toolkit {gpu_driver.CUDA}.0 and set CUDA_HOME"
        remedy = f"{compiler}: {toolkit}, then {flash_attn_command()}"
    remedy += "; or train without it: platform=gpu_sdpa"
    return Finding("flash-attn", WARNING, "not installed", remedy)


def ignores_gpu() -> bool:
    """Return whether an environment variable excludes this machine's GPU (scripts/train.sh sets one for the
    demo)."""
    return os.environ.get("RAG_R1_PLATFORM") == "cpu" or os.environ.get("VERL_PLATFORM") == "cpu"


def check_memory() -> Iterator[Finding]:
    """Check that the machine has enough free memory, and enough shared memory if it has /dev/shm."""
    import psutil

    free_gib = psutil.virtual_memory().available / GIB
    if free_gib >= MEMORY_GIB:
        yield ok("memory", f"{free_gib:.1f} GiB free")
    else:
        text = f"{free_gib:.1f} GiB free; the demo needs up to {MEMORY_GIB:.0f}"
        yield Finding("memory", WARNING, text, "close other programs")
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return
    free_gib = shutil.disk_usage(shm).free / GIB
    if free_gib >= SHM_GIB:
        yield ok("/dev/shm", f"{free_gib:.1f} GiB free")
    else:
        text = f"{free_gib:.2f} GiB free; Ray and veRL share data there"
        yield Finding("/dev/shm", WARNING, text, "give the container more: docker run --shm-size=8g")


def check_ray() -> Iterator[Finding]:
    """Warn if RAY_ADDRESS is set: a run then joins that cluster instead of starting its own."""
    address = os.environ.get("RAY_ADDRESS")
    if address:
        text = f"RAY_ADDRESS={address}: runs join that cluster, all nodes of which need this environment"
        yield Finding("ray cluster", WARNING, text, "unset RAY_ADDRESS to train on this machine only")
