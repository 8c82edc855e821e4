"""Detects the NVIDIA driver, the memory of the GPUs and the CUDA toolkit, without torch.

scripts/gpu_env.sh detects driver and toolkit in the shell, before the first download.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: The CUDA of the locked GPU environment (torch 2.11.0, vllm 0.24.0), for use without torch.
CUDA = 13
#: Major version of CUDA -> the first driver series that runs it (NVIDIA's release notes, minor-version
#: compatibility).
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def driver_version() -> str | None:
    """Returns the driver that nvidia-smi reports, e.g. "580.65.06"; None without nvidia-smi or without a
    driver."""
    version = next(iter(_of_each_gpu("driver_version")), "")
    return version if re.match(r"\d+\.", version) else None


def gpu_memory() -> float | None:
    """Returns bytes of memory of this machine's smallest GPU, by nvidia-smi; None without one."""
    return min(_memory_bytes("total"), default=None)


def gpu_memory_used() -> float | None:
    """Returns bytes in use on the fullest GPU of this machine, by all processes, by nvidia-smi; None without
    one."""
    return max(_memory_bytes("used"), default=None)


def _memory_bytes(kind: str) -> list[float]:
    """Returns bytes of memory of each GPU, `total` or `used`; [] without nvidia-smi or without a driver."""
    return [int(mib) * 2.0**20 for mib in _of_each_gpu(f"memory.{kind}") if mib.isdigit()]


def _of_each_gpu(field: str) -> list[str]:
    """Returns the text that nvidia-smi prints for a field of each GPU; [] without nvidia-smi or a driver."""
    output = _output(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"])
    return [line.strip() for line in output.strip().splitlines()]


def _output(command: Sequence[str]) -> str:
    """Returns the output of a command; "" if it is not there, fails, or takes longer than 30 s."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout if result.returncode == 0 else ""


def oldest_driver(cuda: str | None) -> int:
    """Returns the oldest driver series that runs a torch for `cuda` ("13.0"); None: for the CUDA of the
    locked environment."""
    major = int(cuda.partition(".")[0]) if cuda else CUDA
    return OLDEST_DRIVER.get(major, OLDEST_DRIVER[CUDA])


def too_old(driver: str, needed: int) -> bool:
    """Returns whether a driver is older than the series, unless RAG_R1_OLD_DRIVER=1 says that it is new
    enough."""
    return int(driver.partition(".")[0]) < needed and os.environ.get("RAG_R1_OLD_DRIVER") != "1"


def nvcc_release() -> tuple[str | None, str | None]:
    """Returns (path, release) of the CUDA compiler in CUDA_HOME, PATH or /usr/local/cuda; the release is None
    if it cannot be found out, and both without a compiler."""
    home = os.environ.get("CUDA_HOME")
    candidate = f"{home}/bin/nvcc" if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(candidate).is_file():
        return None, None
    release = re.search(r"release (\d+\.\d+)", _output([candidate, "--version"]))
    return candidate, release.group(1) if release else None
