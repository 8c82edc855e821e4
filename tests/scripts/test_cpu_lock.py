"""The lists of the CPU environment agree with pyproject.toml and with each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.scripts.test_gpu_lock import extra

ROOT = Path(__file__).resolve().parents[2]


def lines(name: str) -> list[str]:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def pins(name: str) -> dict[str, str]:
    """Distributions and their versions, of a list of exact ones."""
    versions = {}
    for line in lines(name):
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==" and not specifier.version.endswith("*"), line
        versions[canonicalize_name(requirement.name)] = specifier.version
    assert len(versions) == len(lines(name)), "a distribution stands there twice"
    return versions


@pytest.mark.parametrize(
    "name", ["cpu.lock.txt", "cpu-cuda-torch.lock.txt", "dev.lock.txt", "apart.lock.txt", "uv.lock.txt"]
)
def test_every_line_is_one_exact_version_and_no_address(name: str):
    assert pins(name)
    assert "://" not in (ROOT / "requirements" / name).read_text(encoding="utf-8")


def test_the_cpu_list_holds_what_the_extra_asks_for():
    locked = pins("cpu.lock.txt")
    for wanted in [*extra("cpu"), *extra("dependencies")]:
        version = locked[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version, prereleases=True), f"{wanted}, but {version}"


def test_torch_is_named_without_a_build_and_what_the_cuda_build_needs_stands_apart():
    locked, cuda = pins("cpu.lock.txt"), pins("cpu-cuda-torch.lock.txt")
    assert re.fullmatch(r"[0-9.]+", locked["torch"]), "either build matches"
    assert not [name for name in locked if name.startswith(("nvidia-", "triton", "cuda-"))]
    assert all(name.startswith(("nvidia-", "triton", "cuda-")) for name in cuda) and "triton" in cuda


def test_lists_that_are_installed_together_name_no_distribution_twice():
    first = pins("cpu.lock.txt")
    for other in ("cpu-cuda-torch.lock.txt", "dev.lock.txt", "uv.lock.txt"):
        assert not set(first) & set(pins(other))
