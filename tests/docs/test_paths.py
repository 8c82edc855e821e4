"""Every path of this repository that a page or a docstring names exists.

From a page: from the root or from the page's own folder. From a docstring: from the root, or from the folder
of the module or one of those above it; a script may also be one of veRL's or vLLM's, as they are installed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "recipes").rglob("README.md"),
        ROOT / "retrieval_server" / "README.md",
        ROOT / "tests" / "README.md",
    ]
)
TOPS = (
    "benchmarks",
    "data_process",
    "docker",
    "docs",
    "rag_r1",
    "recipes",
    "retrieval_server",
    "scripts",
    "tests",
)
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(TOPS)})/[\w./-]*\w")
#: Paths in the data folder ($RAG_R1_DATA), and names of data sources, that begin like one of ours.
DATA = ("rag_r1/hotpotqa",)


def paths(text: str) -> list[str]:
    """The paths below one of the project's folders that a text names, once each."""
    matches = dict.fromkeys(PATH.findall(text))
    return [path for path in matches if not path.startswith(DATA)]


def exists(path: str, folder: Path = ROOT) -> bool:
    """A file or a folder, or a recipe that is named without its ending, also as `rag-r1 train` names it."""
    starts = (ROOT, folder, ROOT / "recipes")
    return any((start / path).exists() or (start / f"{path}.yaml").is_file() for start in starts)


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page: str):
    text = (ROOT / page).read_text("utf-8")
    assert [path for path in paths(text) if not exists(path, (ROOT / page).parent)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page: str):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_paths_of_a_text_are_found_in_code_tables_and_diagrams():
    text = (
        '`rag_r1/data/rows.py`, | tests/README.md. | x["a<br/>docs/security.md"] ../recipes/b docs/ a/docs/b'
    )
    assert paths(text) == ["rag_r1/data/rows.py", "tests/README.md", "docs/security.md"]
    assert not exists("rag_r1/no_such_module.py") and exists("recipes/rag_r1/grpo")


PACKAGES = ("rag_r1", "retrieval_server", "data_process")
SCRIPT = re.compile(r"(?<![\w./{}<>*$-])[\w-]+(?:/[\w.-]+)*\.(?:py|sh)\b")
#: Scripts of others' published code, and one that a reader would write.
OTHERS = {
    "metric_calc_rule.py",
    "my_search.py",
    "scripts_evaluation/evaluate_run.py",
    "searcher/searchers/base.py",
    "searcher/searchers/custom_searcher.py",
    "sp_r1_process_reward.py",
    "src/models/reward.py",
    "src/models/reward_token_level.py",
}


def docstrings(source: str) -> Iterator[str]:
    """Those of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@cache
def scripts_of_verl() -> str:
    """The paths of all of veRL's modules, a line each; each path begins with a slash."""
    (folder,) = find_spec("verl").submodule_search_locations
    return "\n".join(f"/verl/{path.relative_to(folder).as_posix()}" for path in Path(folder).rglob("*.py"))


def is_script(path: str, module: Path) -> bool:
    """Does a script exist that a docstring of `module` (an absolute path) names so?"""
    if path in OTHERS:
        return True
    if path.startswith("vllm/"):
        (folder,) = find_spec("vllm").submodule_search_locations
        return (Path(folder).parent / path).is_file()
    above = [folder for folder in module.parents if folder.is_relative_to(ROOT)]
    return any((folder / path).is_file() for folder in above) or f"/{path}\n" in scripts_of_verl()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_script_and_path_that_a_docstring_names_exists(package: str):
    missing = []
    for module in sorted((ROOT / package).rglob("*.py")):
        source = module.read_text("utf-8")
        for text in docstrings(source) if SCRIPT.search(source) or PATH.search(source) else ():
            wrong = [path for path in SCRIPT.findall(text) if not is_script(path, module)]
            wrong += [path for path in paths(text) if not path.endswith((".py", ".sh")) and not exists(path)]
            missing += [f"{module.relative_to(ROOT)}: {path}" for path in wrong]
    assert missing == []


def test_scripts_are_found_in_docstrings_of_modules_classes_and_functions():
    source = (
        '"""See a.py, `b/c.py` and\nd.sh, not {x}.py."""\n'
        'class A:\n    """f.py"""\n    def g():\n        "h.py."'
    )
    matches = [SCRIPT.findall(text) for text in docstrings(source)]
    assert matches == [["a.py", "b/c.py", "d.sh"], ["f.py"], ["h.py"]]
    module = ROOT / "retrieval_server" / "server" / "app.py"
    assert is_script("routes.py", module) and is_script("search/dense.py", module)
    assert is_script("trainer/ppo/core_algos.py", module)
    assert not is_script("server/service.py", module) and not is_script("dense.py", module)


def training_folders() -> dict[str, set[str]]:
    """Where the shipped recipes' trainings write: for each project the names below `outputs/PROJECT`."""
    folders: dict[str, set[str]] = {}
    for recipe in (ROOT / "recipes").rglob("*.yaml"):
        text = recipe.read_text("utf-8")
        common = recipe.with_name("_common.yaml")
        of_folder = common.read_text("utf-8") if common.exists() else ""
        project = re.search(r"^  project_name: ([\w-]+)$", f"{text}\n{of_folder}", re.MULTILINE)
        name = re.search(r"^  experiment_name: ([\w-]+)$", text, re.MULTILINE)
        if project and name:
            folders.setdefault(project[1], set()).add(name[1])
    return folders


def test_every_training_folder_that_is_named_is_that_of_a_recipe():
    folders = training_folders()
    pattern = re.compile(rf"outputs/({'|'.join(folders)})/([\w-]+)")
    texts = [(ROOT / page).read_text("utf-8") for page in PAGES]
    texts += [module.read_text("utf-8") for top in PACKAGES for module in (ROOT / top).rglob("*.py")]
    named = {match for text in texts for match in pattern.findall(text)}
    assert {("rag-r1", "ppo-mq"), ("agentic-rag-r1", "grpo")} <= named
    assert sorted((project, name) for project, name in named if name not in folders[project]) == []
