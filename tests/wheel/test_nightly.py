"""The complete installation: pip installs the wheel with its extras into an empty environment, from the index
that is configured, and everything that needs no trainer works there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rag_r1.cli import COMMANDS

pytestmark = [
    *(pytest.mark.slow, pytest.mark.full, pytest.mark.nightly, pytest.mark.timeout(1800)),
    pytest.mark.skipif("index" not in COMMANDS, reason="rag-r1 index is not there"),
]
EXTRAS = "retrieval,demo,data,documents,graph,mcp,report"


def test_pip_installs_the_wheel_with_its_extras_and_their_commands_work(
    wheel: Path, venv: Path, tmp_path: Path
):
    here = tmp_path / "empty"
    here.mkdir()

    def run(*words: object, timeout: float = 300) -> str:
        done = subprocess.run(
            [str(venv / "bin" / str(words[0])), *map(str, words[1:])],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=300)
    run("pip", "install", "--quiet", f"rag-r1[{EXTRAS}] @ {wheel.as_uri()}", timeout=1500)
    assert run("pip", "check")
    assert "rag_r1/grpo" in run("rag-r1", "recipes")
    for command in ("serve", "mcp", "corpus", "documents", "data", "retriever"):
        assert run("rag-r1", command, "--help").startswith("usage: rag-r1")
    (here / "notes").mkdir()
    (here / "notes" / "a.md").write_text("# Emma\n\nEmma is a novel by Jane Austen.\n")
    run("rag-r1", "documents", "--folder", "notes", "--out", "corpus")
    words = ["--corpus", "corpus/corpus.jsonl", "--out", "index", "--backend", "bm25"]
    run("rag-r1", "index", "build", *words)
    assert (here / "index" / "manifest.json").is_file()


@pytest.fixture
def venv(tmp_path: Path) -> Iterator[Path]:
    """The folder of an environment; removed at the end: it takes gigabytes, and pytest keeps its folders."""
    yield tmp_path / "venv"
    shutil.rmtree(tmp_path / "venv", ignore_errors=True)
