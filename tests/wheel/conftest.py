"""An environment with the wheel and its base dependencies, made once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wheel.wheel_environments import Environment


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment.bare(tmp_path_factory.mktemp("bare"), wheel)
