"""The docs site: every page has its place in it, every link works, and it is built without a warning."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import docs_site as site  # noqa: E402


class _Loader(yaml.SafeLoader):
    """Reads the tag with which mkdocs names a function of Python as a plain string."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, name, node: name)


def nav_pages() -> list[str]:
    """The pages of the navigation, in order."""
    nav = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), _Loader)["nav"]
    entries = [entry for section in nav for entries in section.values() for entry in entries]
    return [entry if isinstance(entry, str) else next(iter(entry.values())) for entry in entries]


def test_the_navigation_has_every_page_once():
    pages = [str(place) for place in site.pages(ROOT).values() if place.suffix == ".md"]
    assert sorted(nav_pages()) == sorted(pages)


@pytest.mark.parametrize(
    "page",
    sorted(str(p) for p in site.pages(ROOT) if p.suffix == ".md" and p.parts[0] in ("docs", "recipes")),
)
def test_a_page_says_first_for_whom_it_is(page: str):
    assert re.match(r"# [^\n]+\n\nFor (those|all|maintainers)", (ROOT / page).read_text("utf-8"))


@pytest.mark.parametrize(
    "before, after",
    [
        ("[data](data.md)", "[data](data.md)"),
        ("[data](../../docs/guides/data.md#sources)", "[data](data.md#sources)"),
        ("[recipes](../../recipes/README.md)", "[recipes](../recipes/README.md)"),
        ("[a folder](../../recipes)", "[a folder](../recipes/README.md)"),
        ("[blocks](../../rag_r1/protocols/blocks.py)", "blocks"),
        ("[the demo](../../README.md#two-commands)", "[the demo](../index.md)"),
        ("![chat](../images/chat.png)", "![chat](../images/chat.png)"),
        ("[veRL](https://example.org/x.md)", "[veRL](https://example.org/x.md)"),
        ("[below](#sources)", "[below](#sources)"),
        ("```\n[code](../../rag_r1/x.py)\n```", "```\n[code](../../rag_r1/x.py)\n```"),
    ],
)
def test_links_are_those_of_the_site(before: str, after: str):
    assert site.rewrite_links(before, Path("docs/guides/tools.md"), site.pages(ROOT)) == after


def test_the_reference_has_every_public_name_with_its_docstring():
    import rag_r1

    text = site.api_reference()
    assert all(f"### {name}\n" in text for name in rag_r1.__all__)
    assert "#### SearchAgent.ask_all" in text and "setting `in_flight` (32 by default) limits" in text


def test_only_pages_with_a_diagram_bring_the_script_that_draws_it(tmp_path: Path):
    site.collect(tmp_path)
    pages = {page.relative_to(tmp_path): page.read_text("utf-8") for page in tmp_path.rglob("*.md")}
    with_script = {str(page) for page, text in pages.items() if '<script src="mermaid.min.js">' in text}
    assert with_script == {str(page) for page, text in pages.items() if "```mermaid" in text} != set()


def npm_that_packs(folder: Path, script: bytes, monkeypatch) -> None:
    """An `npm` on the path whose package has this script."""
    package = folder / "mermaid.tgz"
    with tarfile.open(package, "w:gz") as files:
        entry = tarfile.TarInfo(site.MERMAID_FILE)
        entry.size = len(script)
        files.addfile(entry, io.BytesIO(script))
    (folder / "npm").write_text(f'#!/bin/sh\ncp "{package}" "$5"\n', encoding="utf-8")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_the_script_for_diagrams_is_the_pinned_one(tmp_path: Path, monkeypatch):
    npm_that_packs(tmp_path, b"draw()", monkeypatch)
    site.fetch_mermaid(tmp_path / "mermaid.min.js", hashlib.sha256(b"draw()").hexdigest())
    assert (tmp_path / "mermaid.min.js").read_bytes() == b"draw()"
    with pytest.raises(OSError, match=site.MERMAID_SHA256):
        site.fetch_mermaid(tmp_path / "other.js")
    assert not (tmp_path / "other.js").exists()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path):
    site.collect(tmp_path / "build" / "docs")
    (tmp_path / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text("utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "build" / "site" / "index.html").is_file()
