"""Files that several web pages share: colours, an icon, and the script that copies to the clipboard."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
#: Content types.
SCRIPT, STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
#: Address of each shared file -> its path and its content type. The files are served without a token.
SHARED_FILES = {
    "/colours.css": (_FOLDER / "colours.css", STYLE),
    "/icon.svg": (_FOLDER / "icon.svg", "image/svg+xml"),
    "/clipboard.js": (_FOLDER / "clipboard.js", SCRIPT),
}
