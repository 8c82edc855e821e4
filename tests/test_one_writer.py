"""Tables of Markdown and pictures are made in one place each: rag_r1/runs/markdown.py and pictures.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("rag_r1", "retrieval_server", "data_process", "examples", "benchmarks")
WRITERS = {"rag_r1/runs/markdown.py", "rag_r1/runs/pictures.py"}
#: Modules in which it looks so, and why.
EXCEPTIONS = {
    "rag_r1/evaluation/report/compare_command.py": "a message in one line: the values of each run",
    "benchmarks/installation.py": "measures how the project is installed, so it must run without it",
}
DRAWING = {"matplotlib", "subplots", "savefig"}
#: What stands in every module that makes one of these; only such a module is parsed.
TRACES = re.compile("|".join((r"\| ?---", r"""["'] ?\| """, *DRAWING)))


def handmade(source: str) -> Iterator[str]:
    """What a module makes by hand: the line below a table's head, its other lines, pictures."""
    for node in ast.walk(ast.parse(source)) if TRACES.search(source) else ():
        match node:
            case ast.Constant(value=str(text)) if "|---" in text or "| ---" in text:
                yield "a separator"
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if text.startswith("| "):
                yield "a row"
            case ast.Attribute(value=ast.Constant(value=" | " | "| "), attr="join"):
                yield "a row"
            case ast.Attribute(attr=name) | ast.alias(name=name) | ast.ImportFrom(module=str(name)) if (
                name.partition(".")[0] in DRAWING
            ):
                yield name


def test_tables_and_pictures_are_made_by_the_one_writer():
    paths = [path for top in TOPS for path in (ROOT / top).rglob("*.py")]
    traces = {str(path.relative_to(ROOT)): list(handmade(path.read_text(encoding="utf-8"))) for path in paths}
    writers = {name: kinds for name, kinds in traces.items() if kinds and name not in WRITERS}
    assert {name: kinds for name, kinds in writers.items() if name not in EXCEPTIONS} == {}
    assert set(EXCEPTIONS) <= set(writers), "this exception is not needed"


def test_what_is_made_by_hand_is_found():
    tables = ['x = "|---|---:|"', 'x = "| a | b |\\n|---|---|"', 'x = f"| {y} |"', '" | ".join(x)']
    drawing = ["plt.subplots()", "figure.savefig(x)", "import matplotlib", "from matplotlib import pyplot"]
    assert [line for line in (*tables, *drawing) if len(list(handmade(line))) != 1] == []
    assert list(handmade('x = "a|b"; y = ", ".join(z); page.table(head, rows)')) == []
