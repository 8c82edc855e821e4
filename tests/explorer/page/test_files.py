"""The page's files: all are served, uPlot is the published one, and modules can be joined into a script."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path

import pytest

from rag_r1.explorer.page import PAGE_FILES, static_page
from rag_r1.http_server import page as shared
from rag_r1.runs.pictures import SERIES

PAGE = Path(PAGE_FILES["/main.js"][0]).parent
OURS = sorted([*PAGE.glob("*.js"), *Path(shared.__file__).parent.glob("*.js")])
#: Of uplot-1.6.32.tgz on npm, folder dist.
UPLOT = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|createContextualFragment"
)


def test_uplot_is_the_published_one_with_its_licence_and_small():
    folder = PAGE / "uplot"
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()} == UPLOT
    assert sum(path.stat().st_size for path in folder.iterdir()) < 100_000


def test_every_file_that_the_page_or_a_module_names_is_served():
    named = set(re.findall(r'(?:href|src)="([\w.]+)"', (PAGE / "index.html").read_text("utf-8")))
    for path in OURS:
        if path.stem != "static":
            named |= {f"{name}.js" for name in re.findall(r'from "\./(\w+)\.js"', path.read_text("utf-8"))}
    assert {f"/{name}" for name in named} <= {*PAGE_FILES}
    assert all(path.is_file() for path, _ in PAGE_FILES.values())


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_a_module_makes_no_markup_from_text_and_has_one_idea(path: Path):
    text = path.read_text("utf-8")
    assert text.startswith("// ")
    assert MARKUP.findall(text) == []
    assert len(text.splitlines()) <= 300


def test_the_modules_of_a_static_page_are_joined_whole():
    page = static_page({"title": "Runs", "made": "", "trajectories": []})
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    assert not re.search(r"^(?:import|export)\b", script, re.MULTILINE)
    assert "</script" not in script and "<!--" not in script
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.MULTILINE)
    assert "trajectory" in names
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_no_data_ends_the_block_of_a_static_page_or_its_title():
    attack = '</script><script>alert(1)</script><!-- "\ud800\u2028'
    page = static_page({"title": attack, "made": attack, "trajectories": [{attack: attack}]})
    assert page.count("<script") == page.count("</script>") == 2
    assert "<!--" not in page and "\u2028" not in page.partition("<body")[2]
    page.encode("utf-8")


def test_the_charts_have_the_colours_of_the_pictures():
    colours = re.search(r"COLOURS = \[(.*?)\]", (PAGE / "charts.js").read_text("utf-8"))[1]
    assert re.findall(r"#\w+", colours) == [*SERIES]
    assert re.findall(r"\.s\d \{ background: (#\w+)", (PAGE / "explorer.css").read_text("utf-8")) == [*SERIES]
