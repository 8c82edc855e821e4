"""Detects the NVIDIA driver, the GPU memory and the CUDA toolkit, without torch.

scripts/gpu_env.sh detects the driver and the toolkit in the shell, before anything is downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: Major version of CUDA in the locked GPU environment (torch 2.11.0, vllm 0.24.0).
CUDA = 13
#: Major version of CUDA -> the first driver series that supports it (NVIDIA's release notes, minor-version
#: compatibility).
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def driver_version() -> str | None:
    """Return the driver version that nvidia-smi reports, e.g. "580.65.06"; None without nvidia-smi or a
    driver."""
    version = next(iter(_query_gpus("driver_version")), "")
    return version if re.match(r"\d+\.", version) else None


def gpu_memory() -> float | None:
    """Return the memory of this machine's smallest GPU in bytes, as nvidia-smi reports it; None without a
    GPU."""
    return min(_memory_bytes("total"), default=None)


def gpu_memory_used() -> float | None:
    """Return the memory in use by all processes on this machine's fullest GPU in bytes, as nvidia-smi
    reports it; None without a GPU."""
    return max(_memory_bytes("used"), default=None)


def _memory_bytes(kind: str) -> list[float]:
    """Return the memory of each GPU in bytes, where `kind` is `total` or `used`; [] without nvidia-smi or a
    driver."""
    return [int(mib) * 2.0**20 for mib in _query_gpus(f"memory.{kind}") if mib.isdecimal()]


def _query_gpus(field: str) -> list[str]:
    """Return the value of a field of nvidia-smi for each GPU, as text; [] without nvidia-smi or a driver."""
    output = _command_output(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"])
    return [line.strip() for line in output.strip().splitlines()]


def _command_output(command: Sequence[str]) -> str:
    """Return the output of a command; "" if the command does not exist, fails, or takes longer than 30 s."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout if result.returncode == 0 else ""


def oldest_driver(cuda: str | None) -> int:
    """Return the oldest driver series that supports a torch built for the CUDA version `cuda`, e.g. "13.0".
    None, or a major version that is not in OLDEST_DRIVER, stands for the CUDA of the locked environment."""
    major = int(cuda.partition(".")[0]) if cuda else CUDA
    return OLDEST_DRIVER.get(major, OLDEST_DRIVER[CUDA])


def too_old(driver: str, needed: int) -> bool:
    """Return whether a driver version, e.g. "580.65.06", is older than the needed series. RAG_R1_OLD_DRIVER=1
    declares any driver new enough."""
    return int(driver.partition(".")[0]) < needed and os.environ.get("RAG_R1_OLD_DRIVER") != "1"


def nvcc_release() -> tuple[str | None, str | None]:
    """Return the path of the CUDA compiler and its release, e.g. "13.0". It is looked for in CUDA_HOME or, if
    that is not set, in PATH and in /usr/local/cuda. The release is None if it cannot be determined, and both
    are None without a compiler."""
    home = os.environ.get("CUDA_HOME")
    nvcc = f"{home}/bin/nvcc" if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).is_file():
        return None, None
    release = re.search(r"release (\d+\.\d+)", _command_output([nvcc, "--version"]))
    return nvcc, release[1] if release else None
