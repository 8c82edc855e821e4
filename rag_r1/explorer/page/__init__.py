"""The page of `rag-r1 view`: the addresses of its files, and the static page of an export.

The page is plain JavaScript modules that the browser loads as they are; there is no build step. A static page
has no server to load them from: the modules of its view are joined into one script, in an order in which each
follows those that it imports, without their `import` lines and the word `export`. For this no two of them may
declare the same name at the top, and an import may rename nothing, which the tests check
(tests/explorer/page/test_files.py).
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

from rag_r1.http_server.page import SCRIPT, SHARED_FILES, STYLE
from rag_r1.protocols.actions import well_formed

_FOLDER = Path(__file__).parent
_MODULES = sorted(path.stem for path in _FOLDER.glob("*.js") if path.stem != "static")
#: The files of the page by their address, each with its content type. They hold no data: no token is needed.
PAGE_FILES = {
    **SHARED_FILES,
    "/": (_FOLDER / "index.html", "text/html; charset=utf-8"),
    "/explorer.css": (_FOLDER / "explorer.css", STYLE),
    "/trajectory.css": (_FOLDER / "trajectory.css", STYLE),
    "/uplot.js": (_FOLDER / "uplot" / "uPlot.iife.min.js", SCRIPT),
    "/uplot.css": (_FOLDER / "uplot" / "uPlot.min.css", STYLE),
    **{f"/{name}.js": (_FOLDER / f"{name}.js", SCRIPT) for name in _MODULES},
}
#: A line that imports, with the name of the module; the word `export` before a declaration.
_IMPORT = re.compile(r'^import\s[^;]*?from\s+"\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_STATIC_STYLES = ("/colours.css", "/explorer.css", "/trajectory.css")


def static_page(data: dict[str, Any]) -> str:
    """Returns a page, as HTML, that shows trajectories without a server and loads nothing.

    `data`: `title`, `made` (the date, as text), and `trajectories`: for each what `/api/trajectory/TID`
    answers. Its Content-Security-Policy allows the one script and the one style by their hashes."""
    script = _join_modules("static")
    style = "\n".join(PAGE_FILES[address][0].read_text("utf-8") for address in _STATIC_STYLES)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'"
    )
    # ASCII only: lone surrogates stay what they are, and no text can end the element or begin a comment.
    block = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(well_formed(str(data.get('title', ''))))}</title>\n"
        f'<style>{style}</style>\n</head>\n<body class="static-page">\n'
        f'<script id="data" type="application/json">{block}</script>\n<script>{script}</script>\n'
        "</body>\n</html>\n"
    )


def _join_modules(entry: str) -> str:
    """The text of a module and all that it imports, as one classic script."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in parts:
            return
        path, _ = PAGE_FILES.get(f"/{name}.js", (_FOLDER / f"{name}.js", SCRIPT))
        text = path.read_text("utf-8")
        for imported in _IMPORT.findall(text):
            add(imported)
        parts[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    add(entry)
    return '(() => {\n"use strict";\n' + "\n".join(parts.values()) + "})();\n"


def _hash(text: str) -> str:
    """The hash of a script or style, as a Content-Security-Policy has it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
