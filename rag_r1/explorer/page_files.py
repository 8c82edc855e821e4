"""The files of the page (page/), by address, each with its content and type."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).with_name("page")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def page_files() -> dict[str, tuple[bytes, str]]:
    """Address -> content and type; `/` is index.html."""
    files = {
        f"/{path.name}": (path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(PAGE.glob("*"))
        if path.suffix in _TYPES
    }
    if "/index.html" in files:
        files["/"] = files.pop("/index.html")
    return files
