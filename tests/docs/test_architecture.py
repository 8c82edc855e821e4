"""docs/architecture.md names every package, and its diagrams keep to syntax that GitHub renders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
DIAGRAMS = re.findall(r"^```mermaid\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

#: A line of a diagram: node --> node. Labels are quoted; a node has its label where it is first used.
NODE = r'[a-z]\w*(?:\["[^"\[\]{}]+"\])?'
EDGE = re.compile(rf'    {NODE} -->(?:\|"[^"|]+"\|)? {NODE}')


def packages(*tops: str) -> list[str]:
    """The folders right below `tops` that hold Python modules, as paths from the root."""
    folders = {path.parent for top in tops for path in (ROOT / top).glob("*/*.py")}
    return sorted(folder.relative_to(ROOT).as_posix() for folder in folders)


@pytest.mark.parametrize("package", packages("rag_r1", "retrieval_server"))
def test_every_package_is_on_the_page(package: str):
    assert re.search(rf"\b{re.escape(package)}\b", PAGE)


def test_there_are_two_diagrams_one_for_each_path():
    assert [diagram.splitlines()[0] for diagram in DIAGRAMS] == ["flowchart TD", "flowchart LR"]


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=["question", "query"])
def test_a_diagram_has_only_edges_between_nodes_with_quoted_labels(diagram: str):
    lines = diagram.splitlines()[1:]
    assert [line for line in lines if not EDGE.fullmatch(line)] == []


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=["question", "query"])
def test_every_node_of_a_diagram_has_one_label_and_no_reserved_name(diagram: str):
    labels = re.findall(r'(\w+)\["', diagram)
    names = {name for line in diagram.splitlines()[1:] for name in re.findall(r"(?:^ +|[>|] )(\w+)", line)}
    assert sorted(labels) == sorted(names)
    assert names.isdisjoint({"end", "graph", "flowchart", "subgraph", "style", "class", "click", "default"})
