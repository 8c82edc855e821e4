"""No message names a file that only a clone has: an installation from a wheel has commands and modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for package in ("rag_r1", "data_process") for path in (ROOT / package).rglob("*.py"))
#: This module tells the two forms of an installation apart, and says what each can do.
ALLOWED = {"rag_r1/system/installation.py"}
_FOLDERS = "benchmarks|docker|docs|examples|recipes|requirements|scripts|tests"
IN_A_CLONE = re.compile(
    rf"(?<![\w/.-])(?:(?:{_FOLDERS})/[\w*./-]+"
    r"|(?:rag_r1|retrieval_server|data_process)/[\w/]+\.(?:py|yaml|sh)"
    r"|[\w-]+\.sh\b|(?:build_index|start_retrieval|shard_index)\.py"
    r"|pip install -e|pip install [\"']?\.)"
)
#: A module without any of these names none of them, in whatever parts; only others are parsed.
TRACES = re.compile(
    rf"(?:{_FOLDERS}|rag_r1|retrieval_server|data_process)/|\.sh\b"
    "|build_index|start_retrieval|shard_index|pip install"
)


def literals(text: str) -> Iterator[tuple[int, str]]:
    """(line, string) of each string that can be shown: not the docstrings, except that of a module which
    shows its own as its help."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    hidden = set()
    for node in ast.walk(tree):
        shows_its_own = isinstance(node, ast.Module) and "__doc__" in text
        if isinstance(node, documented) and ast.get_docstring(node) and not shows_its_own:
            hidden.add(id(node.body[0].value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.lineno, node.value


def named(text: str) -> list[str]:
    """The files of a clone that the literals of a module name, with their lines."""
    if not TRACES.search(text):
        return []
    return [f"{line}: {path}" for line, message in literals(text) for path in IN_A_CLONE.findall(message)]


def test_no_message_names_a_file_that_only_a_clone_has():
    faults = {str(path.relative_to(ROOT)): named(path.read_text(encoding="utf-8")) for path in FILES}
    assert {name: paths for name, paths in faults.items() if paths and name not in ALLOWED} == {}


@pytest.mark.parametrize(
    "text",
    [
        "start it: python retrieval_server/start_retrieval.py --index DIR",
        "bash scripts/setup_env.sh",
        "(build_index.py --encoder MODEL)",
        "see docs/guides/data.md",
        "use recipes/rag_r1/grpo",
        "bash train_grpo.sh",
        'pip install ".[retrieval]"',
        "pip install -e .",
        "python data_process/mixture.py",
    ],
)
def test_what_is_looked_for_is_found(text):
    assert named(f"'''A docstring: scripts/setup_env.sh'''\nprint(f'{{x}} ' {text!r})") == [
        f"2: {path}" for path in IN_A_CLONE.findall(text)
    ]
    assert IN_A_CLONE.search(text)


@pytest.mark.parametrize(
    "text",
    ["rag-r1 train --recipe rag_r1/grpo", "python -m data_process.mixture", 'pip install "rag-r1[cpu]"'],
)
def test_commands_and_modules_are_no_files(text):
    assert not IN_A_CLONE.search(text)
