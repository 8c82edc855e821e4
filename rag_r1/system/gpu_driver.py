"""Detects the versions of the NVIDIA driver and the CUDA toolkit, without torch.

scripts/gpu_env.sh finds the same in the shell, before the first download.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

CUDA = 13
"""The CUDA of the locked GPU environment (torch 2.11.0, vllm 0.24.0), for use without torch."""

OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Major version of CUDA -> the first driver series that runs it (NVIDIA's release notes, minor-version
compatibility)."""


def driver_version() -> str | None:
    """The driver that nvidia-smi reports, e.g. "580.65.06"; None without nvidia-smi or without a driver."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = result.stdout.strip().splitlines()[:1]
    return lines[0].strip() if result.returncode == 0 and lines and re.match(r"\d+\.", lines[0]) else None


def gpu_memory() -> float | None:
    """Bytes of this machine's smallest GPU, by nvidia-smi; None without one."""
    return min(_memory("total"), default=None)


def gpu_memory_used() -> float | None:
    """Bytes in use on the fullest GPU of this machine, by all processes, by nvidia-smi; None without one."""
    return max(_memory("used"), default=None)


def _memory(kind: str) -> list[float]:
    """Bytes of each GPU: `total` or `used`; [] without nvidia-smi or without a driver."""
    if driver_version() is None:
        return []
    query = ["nvidia-smi", f"--query-gpu=memory.{kind}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = result.stdout.splitlines() if result.returncode == 0 else []
    return [int(line) * 2.0**20 for line in map(str.strip, lines) if line.isdigit()]


def oldest_driver(cuda: str | None) -> int:
    """The driver series that a torch for `cuda` ("13.0") needs; None: that of the locked environment."""
    major = int(cuda.partition(".")[0]) if cuda else CUDA
    return OLDEST_DRIVER.get(major, OLDEST_DRIVER[CUDA])


def too_old(driver: str, needed: int) -> bool:
    """Whether a driver is older than the series, unless RAG_R1_OLD_DRIVER=1 says that it is new enough."""
    return int(driver.partition(".")[0]) < needed and os.environ.get("RAG_R1_OLD_DRIVER") != "1"


def nvcc_release() -> tuple[str | None, str | None]:
    """(path, release) of the CUDA compiler in CUDA_HOME, PATH or /usr/local/cuda; (None, None) without
    one."""
    home = os.environ.get("CUDA_HOME")
    candidate = f"{home}/bin/nvcc" if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(candidate).is_file():
        return None, None
    try:
        result = subprocess.run([candidate, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return candidate, None
    release = re.search(r"release (\d+\.\d+)", result.stdout)
    return candidate, release.group(1) if release else None
