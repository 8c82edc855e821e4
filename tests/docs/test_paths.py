"""Every path of this repository that a page names exists, from the root or from the page's own folder."""

from __future__ import annotations

import re
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
#: Paths in the data folder ($RAG_R1_DATA) that begin like one of ours.
DATA = ("rag_r1/hotpotqa_train_filter_mq",)


def paths(text: str) -> list[str]:
    """The paths below one of the project's folders that a text names, once each."""
    found = dict.fromkeys(PATH.findall(text))
    return [path for path in found if not path.startswith(DATA)]


def exists(path: str, folder: Path = ROOT) -> bool:
    """A file or a folder, or a recipe that is named without its ending."""
    return any((start / path).exists() or (start / f"{path}.yaml").is_file() for start in (ROOT, folder))


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
    text = '`rag_r1/rows.py`, | tests/README.md. | x["a<br/>docs/security.md"] ../recipes/b docs/ a/docs/b'
    assert paths(text) == ["rag_r1/rows.py", "tests/README.md", "docs/security.md"]
    assert not exists("rag_r1/no_such_module.py") and exists("recipes/rag_r1/grpo")
