"""Files that our pages share: their colours, their icon, and the script that copies to the clipboard."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
SCRIPT, STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
#: The shared files by their address, each with its content type. They are served without a token.
SHARED_FILES = {
    "/colours.css": (_FOLDER / "colours.css", STYLE),
    "/icon.svg": (_FOLDER / "icon.svg", "image/svg+xml"),
    "/clipboard.js": (_FOLDER / "clipboard.js", SCRIPT),
}
