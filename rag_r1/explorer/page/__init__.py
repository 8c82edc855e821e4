"""Lists the files of the page of `rag-r1 view`, and makes the static page of an export.

The page consists of JavaScript modules that the browser loads directly; there is no build step. A static page
has no server to load them from, so the modules of its view are joined into one script. Each module follows
those that it imports, and `import` lines and the word `export` are removed. This requires that no two modules
declare the same name at the top level, and that no import renames anything, which the tests check
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
#: The modules that a browser loads; `static` is that of static pages only.
_MODULES = sorted(path.stem for path in _FOLDER.glob("*.js") if path.stem != "static")
#: The files of the page by their addresses, with their content types. They need no token, since they have no
#: data.
PAGE_FILES = {
    **SHARED_FILES,
    "/": (_FOLDER / "index.html", "text/html; charset=utf-8"),
    "/explorer.css": (_FOLDER / "explorer.css", STYLE),
    "/trajectory.css": (_FOLDER / "trajectory.css", STYLE),
    "/uplot.js": (_FOLDER / "uplot" / "uPlot.iife.min.js", SCRIPT),
    "/uplot.css": (_FOLDER / "uplot" / "uPlot.min.css", STYLE),
    **{f"/{name}.js": (_FOLDER / f"{name}.js", SCRIPT) for name in _MODULES},
}
#: An `import` line with the name of the module, and the word `export` before a declaration.
_IMPORT = re.compile(r'^import\s[^;]*?from\s+"\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_STATIC_STYLES = ("/colours.css", "/explorer.css", "/trajectory.css")


def static_page(data: dict[str, Any]) -> str:
    """Return a page, as HTML, that shows trajectories without a server and without loading other files.

    `data` has `title`, `made` (the date as text), and `trajectories`, a list of the answers of
    `/api/trajectory/TID`. The Content-Security-Policy of the page allows its script and its style by their
    hashes.
    """
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
    """Join a module and all modules that it imports into one classic script."""
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
    """Return the hash of a script or style in the form of a Content-Security-Policy."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
