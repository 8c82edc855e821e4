"""A package that is not installed is one problem among the others, with the command that installs it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from rag_r1.cli import main
from rag_r1.runs.start_checks import StartChecks, StartError, check_packages
from rag_r1.system import installation

#: The words of a command, the module that is missing, and what is named beside it.
COMMANDS = {
    "view": ("none --port 0", "duckdb", "none: there is no such"),
    "serve": ("--model none_m --documents none --port 0", "vllm", "--documents none"),
    "chat": ("--model none_m --documents none", "fastapi", "--documents none"),
    "demo": ("--out file", "verl", "file is a file"),
    "pipeline": ("--base file --out file", "vllm", "--base file"),
    "retriever train": (
        "--rows none.jsonl --corpus c.jsonl --model m --out o",
        "sentence_transformers",
        "none.jsonl",
    ),
    "model get": ("smollm2-135m --out file", "transformers", "--out file"),
    "model export-nf4": ("none --base ./none_m --out o", "bitsandbytes", "none is not a checkpoint"),
}


@pytest.fixture
def without(monkeypatch):
    """Makes a module one that is not installed."""

    def remove(name: str) -> None:
        found = importlib.util.find_spec
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setattr(installation, "find_spec", lambda other: None if other == name else found(other))

    return remove


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_package_hides_no_other_problem(command, without, tmp_path, monkeypatch, capsys):
    words, package, other = COMMANDS[command]
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("c.jsonl").write_text(json.dumps({"id": "1", "contents": "Ulm"}))
    without(package)
    assert main([*command.split(), *words.split()]) == 1
    said = capsys.readouterr().err
    assert f"rag-r1 {command} needs {package}, which is not installed: " in said and other in said


def test_a_module_that_no_command_names_is_no_problem_of_the_user():
    def fails():
        raise ModuleNotFoundError("No module named 'another'", name="another")

    with pytest.raises(ModuleNotFoundError), StartChecks() as checks:
        checks.run(fails)


def test_beside_a_missing_package_a_check_that_needs_it_says_nothing(without):
    def fails():
        raise ModuleNotFoundError("No module named 'duckdb'", name="duckdb")

    without("duckdb")
    with pytest.raises(StartError) as raised, StartChecks() as checks:
        checks.run(check_packages, "rag-r1 view", "duckdb")
        checks.run(fails)
        checks.run(Path("none").read_text)
    assert len(raised.value.problems) == 2
