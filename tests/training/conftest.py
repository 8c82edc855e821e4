"""A driver for the checks that look for one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts an nvidia-smi that reports this driver first in PATH."""

    def make(driver: str) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f'#!/bin/sh\necho "{driver}"\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.delenv("RAG_R1_PLATFORM", raising=False)
        monkeypatch.delenv("VERL_PLATFORM", raising=False)

    return make
