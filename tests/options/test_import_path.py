"""An import path in the configuration: found beside the caller, and told in one sentence if not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rag_r1.options.import_path import ImportPathError, import_object
from rag_r1.rewards import RewardError, RewardSum
from rag_r1.tools.registry import make_searcher

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_function_and_a_method_of_a_package_are_imported():
    assert import_object("os.path:join") is os.path.join


@pytest.mark.parametrize("path", ["", "os", ":f", "os:", ".x:f"])
def test_what_is_no_import_path_is_told_with_an_example(path):
    with pytest.raises(ImportPathError) as caught:
        import_object(path)
    assert "is not an import path" in str(caught.value) and "my_rewards:brevity" in caught.value.remedy


def test_a_module_that_is_nowhere_is_told_with_the_file_and_where_it_was_looked_for(here, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/some/where")
    with pytest.raises(ImportPathError) as caught:
        import_object("no_such_package.rewards:brevity")
    told = str(caught.value)
    assert f"no_such_package{os.sep}rewards.py was looked for in {here}" in told and "/some/where" in told
    assert "no_such_package" in caught.value.remedy and "PYTHONPATH" in caught.value.remedy


def test_a_module_without_the_name_is_told_with_the_names_it_has(here):
    (here / "has_others.py").write_text("def brevity(): ...\ndef length(): ...\n")
    with pytest.raises(ImportPathError, match="has_others.py has no 'brevty'") as caught:
        import_object("has_others:brevty")
    assert "brevity, length" in caught.value.remedy


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("def (", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys\nfrom sys import no_such", "ImportError"),
        ("def __getattr__(name): import no_such_dependency", "ModuleNotFoundError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_its_file_and_its_own_error(here, code, words):
    name = f"broken_{abs(hash(code))}"
    (here / f"{name}.py").write_text(code)
    with pytest.raises(ImportPathError) as caught:
        import_object(f"{name}:f")
    assert f"{here / name}.py raises" in str(caught.value) and words in str(caught.value)


def test_what_the_module_needs_is_to_be_installed_unless_it_is_of_its_own_package(here):
    (here / "needs_another.py").write_text("import no_such_dependency.part\n")
    with pytest.raises(ImportPathError) as caught:
        import_object("needs_another:f")
    assert caught.value.remedy == f"install no_such_dependency, which {here / 'needs_another.py'} needs"
    package = here / "needs_itself"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rewards.py").write_text("import needs_itself.no_such_part\n")
    with pytest.raises(ImportPathError) as caught:
        import_object("needs_itself.rewards:f")
    assert caught.value.remedy == f"correct {package / 'rewards.py'}"


def test_rewards_and_tools_say_it_under_their_key():
    with pytest.raises(RewardError, match=r"^rag_r1\.reward\[0\]\.term: cannot import 'nowhere:f'") as caught:
        RewardSum.from_config([{"term": "nowhere:f"}])
    assert "PYTHONPATH" in caught.value.remedy
    with pytest.raises(ValueError, match=r"^rag_r1\.retriever\.tool: cannot import 'nowhere:f'"):
        make_searcher({"tool": "nowhere:f"})


@pytest.mark.slow
def test_modules_beside_the_caller_are_found_behind_all_others(tmp_path):
    (tmp_path / "mine.py").write_text("found = 'beside the caller'\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('taken for the standard library')\n")
    code = (
        "from rag_r1.options.import_path import add_working_directory, import_object\n"
        "add_working_directory(); add_working_directory()\n"
        "import json, sys\n"
        "print(import_object('mine:found'), sum(entry == sys.path[-1] for entry in sys.path))\n"
    )
    script = tmp_path / "bin" / "rag-r1"  # an installed command: its own folder comes first, not the caller's
    script.parent.mkdir()
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout == "beside the caller 1\n", done.stderr
