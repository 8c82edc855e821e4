"""Builds the docs site from the project's plain Markdown.

    python scripts/docs_site.py                  # build/site/index.html; needs `pip install ".[docs]"`
    python scripts/docs_site.py --pages          # only collects the pages, in build/docs

The pages are stored where they are read on a code host: in docs, at the root, and as READMEs of folders. The
site has all of them in one tree: docs/X becomes X, and every other page keeps its path. A link between two
pages is rewritten to their paths in that tree; a link to a source file, which is not on the site, is replaced
by its text. The page of the Python API gets the signatures and docstrings of the package's public names.

Diagrams are drawn in the reader's browser by Mermaid, which Zensical's script loads from a CDN unless the
page already includes it. Pages with a diagram therefore include it: when the site is built, npm downloads the
pinned release, and its hash is checked. Without npm the site is still built, and its diagrams need the CDN.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "docs"
#: Pages outside docs, as globs from the root.
OTHER_PAGES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "recipes/**/README.md",
    "retrieval_server/README.md",
    "examples/**/README.md",
    "tests/README.md",
)
#: The script that draws diagrams: its npm package, its path there and on the site, and its SHA-256.
MERMAID = "mermaid@12.3.0"
MERMAID_FILE = "package/dist/mermaid.min.js"
MERMAID_SITE_PATH = Path("mermaid.min.js")
MERMAID_SHA256 = "336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3"
#: An inline link or picture, whose target is not an external address.
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def pages(root: Path = ROOT) -> dict[Path, Path]:
    """Return the pages and pictures below `root`, each with its path on the site; all paths are relative."""
    docs = [path for path in (root / "docs").rglob("*") if path.suffix in (".md", ".png")]
    docs.remove(root / "docs" / "package.md")  # the page for the package index
    site_paths = {path.relative_to(root): path.relative_to(root / "docs") for path in sorted(docs)}
    for pattern in OTHER_PAGES:
        site_paths |= {path.relative_to(root): path.relative_to(root) for path in sorted(root.glob(pattern))}
    return site_paths


def rewrite_links(text: str, page: Path, site_paths: dict[Path, Path]) -> str:
    """Return the text of a page with the links of the site; code is not changed.

    `page` is the path of the page from the root, and `site_paths` is what `pages` returns.
    """

    def link(match: re.Match[str]) -> str:
        """Return a link as the site has it, or only its label if the target is not a page."""
        picture, label, target, heading = match.group(1), match.group(2), match.group(3), match.group(4) or ""
        if not target:
            return match.group()
        path = Path(os.path.normpath(page.parent / target))
        if path == Path("README.md"):  # the site's index has other sections
            path, heading = Path("docs/index.md"), ""
        linked = next((choice for choice in (path, path / "README.md") if choice in site_paths), None)
        if linked is None:
            return label
        return f"{picture}[{label}]({os.path.relpath(site_paths[linked], site_paths[page].parent)}{heading})"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def api_reference() -> str:
    """Return the signatures and docstrings of the names in `rag_r1.__all__`, as Markdown."""
    import rag_r1

    sections = ["\n## Reference\n"]
    for name in rag_r1.__all__:
        item = getattr(rag_r1, name)
        sections.append(_entry("###", name, item))
        if inspect.isclass(item):
            for method, function in vars(item).items():
                if not method.startswith("_") and inspect.isfunction(function):
                    sections.append(_entry("####", f"{name}.{method}", function))
    return "\n".join(sections)


def _entry(level: str, name: str, item: object) -> str:
    """Return the section on one name, under a heading of this level."""
    try:
        signature = str(inspect.signature(item))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        signature = ""
    return f"{level} {name}\n\n```python\n{name}{signature}\n```\n\n{inspect.getdoc(item) or ''}\n"


def collect(out: Path = BUILD, root: Path = ROOT) -> int:
    """Write all files of the site below `out`, which is emptied first, and return their number."""
    shutil.rmtree(out, ignore_errors=True)
    site_paths = pages(root)
    for source, site_path in site_paths.items():
        target = out / site_path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".png":
            shutil.copyfile(root / source, target)
            continue
        text = rewrite_links((root / source).read_text(encoding="utf-8"), source, site_paths)
        if "\n```mermaid\n" in text:
            text += f'\n<script src="{os.path.relpath(MERMAID_SITE_PATH, site_path.parent)}"></script>\n'
        target.write_text(text + (api_reference() if site_path == Path("api.md") else ""), encoding="utf-8")
    return len(site_paths)


def fetch_mermaid(target: Path, sha256: str = MERMAID_SHA256) -> None:
    """Download the script that draws diagrams with npm. Raises OSError if that fails or the hash differs."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", MERMAID, "--silent", "--pack-destination", folder]
        finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode:
            raise OSError(f"npm pack {MERMAID}: {finished.stderr.strip() or finished.returncode}")
        (package,) = Path(folder).glob("*.tgz")
        with tarfile.open(package) as files:
            script = files.extractfile(MERMAID_FILE).read()  # type: ignore[union-attr]
    if (digest := hashlib.sha256(script).hexdigest()) != sha256:
        raise OSError(f"{MERMAID}: {MERMAID_FILE} has the SHA-256 {digest}, not {sha256}")
    target.write_bytes(script)


def main(argv: Sequence[str] | None = None) -> int:
    """Collect the pages and build the site, with warnings as errors; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", action="store_true", help="collect the pages only")
    args = parser.parse_args(argv)
    print(f"{collect()} files in {BUILD}")
    if args.pages:
        return 0
    if find_spec("zensical") is None:
        print('error: zensical is not installed: pip install ".[docs]"', file=sys.stderr)
        return 1
    try:
        fetch_mermaid(BUILD / MERMAID_SITE_PATH)
    except OSError as error:
        print(f"warning: the diagrams need a CDN: {error}", file=sys.stderr)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run([*command, "--config-file", str(ROOT / "mkdocs.yml")], cwd=ROOT).returncode


if __name__ == "__main__":
    raise SystemExit(main())
