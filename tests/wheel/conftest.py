"""The wheel of this repository, built once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest
from wheel_environments import Environment, build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment.bare(tmp_path_factory.mktemp("bare"), wheel)
