"""benchmarks/installation.py on a clone whose setup script makes a folder and talks like the real one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "installation.py"
SETUP = """
set -eu
: "${VENV:=$PWD/.venv}"
mkdir -p "$VENV" "$UV_CACHE_DIR" "$PIP_CACHE_DIR"
head -c 40000000 /dev/zero | tr '\\0' 'x' > "$VENV/package"
ln "$VENV/package" "$VENV/same"
cached=$(ls "$UV_CACHE_DIR" "$PIP_CACHE_DIR" | grep -c wheel) || true
echo "${RAG_R1_INSTALLER:=uv} $RAG_R1_PLATFORM cached=$cached ${PIP_INDEX_URL:-pypi}" >> calls
touch "$UV_CACHE_DIR/wheel"
echo "setup: installing the CPU environment into $VENV with $RAG_R1_INSTALLER (torch==2.13.0+cpu; 1 GB)" >&2
"""
DEMO = "mkdir -p outputs/demo/grpo && touch outputs/demo/grpo/report.png"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch) -> Path:
    """A repository with these scripts, which write down how they were called."""
    folder = tmp_path / "clone"
    (folder / "scripts").mkdir(parents=True)
    calls = f"{tmp_path}/calls"
    (folder / "scripts" / "setup_env.sh").write_text(SETUP.replace(">> calls", f">> {calls}"))
    (folder / "train_grpo.sh").write_text(DEMO)
    for command in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm one"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    monkeypatch.setenv("PIP_INDEX_URL", "file:///own")
    return folder


def table_lines(clone: Path, capsys, monkeypatch, *arguments: str) -> list[str]:
    """The lines of the tables."""
    spec = importlib.util.spec_from_file_location("installation", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = clone
    work = clone.parent / "work"
    work.mkdir()
    monkeypatch.setattr(sys, "argv", ["installation.py", "--work", str(work), *arguments])
    module.main()
    assert not list(work.iterdir()), "everything is removed"
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]


def test_each_installer_begins_with_empty_caches_and_then_finds_its_own(clone: Path, capsys, monkeypatch):
    header, _, *rows = table_lines(clone, capsys, monkeypatch)
    assert header == "| installer | cache | torch | seconds | GB on disk |"
    assert [row.split(" | ")[:3] + row.split(" | ")[4:] for row in rows] == [
        [f"| {installer}", cache, "2.13.0+cpu", "0.0 |"]
        for installer in ("uv", "pip")
        for cache in ("empty", "filled")
    ], "a file with two names counts once: 0.04 GB"
    assert (clone.parent / "calls").read_text().splitlines() == [
        f"{installer} cpu cached={cached} file:///own" for installer in ("uv", "pip") for cached in (0, 1)
    ]


def test_the_demo_is_a_fresh_clone_and_pypi_only_hides_what_pip_is_told(clone: Path, capsys, monkeypatch):
    (clone / "scripts" / "setup_env.sh").write_text("exit 1")  # not committed
    lines = table_lines(clone, capsys, monkeypatch, "--installers", "--demo", "--pypi-only")
    assert len(lines) == 3 and lines[-1].startswith("| 2.13.0+cpu | ")
    assert (clone.parent / "calls").read_text() == "uv cpu cached=0 pypi\n"


def test_a_failed_installation_ends_it_with_what_was_said(clone: Path, capsys, monkeypatch):
    (clone / "scripts" / "setup_env.sh").write_text("echo no space; exit 3")
    with pytest.raises(SystemExit, match="(?s)ended with status 3.*no space"):
        table_lines(clone, capsys, monkeypatch)
