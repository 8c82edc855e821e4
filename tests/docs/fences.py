"""The fenced blocks of the pages: their language, their text, and the mark that says what one needs.

A block of shell or Python is run by the tests (test_commands.py, test_python_blocks.py), or the line above it
is a mark, which no reader sees:

    <!-- needs: a GPU -->

The commands of a marked block are parsed by their own parsers and not run (command_parsers.py).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "guides").glob("*.md"),
        *(ROOT / "recipes").rglob("README.md"),
        ROOT / "retrieval_server" / "README.md",
    ]
)
_FENCE = re.compile(
    r"(?:^<!-- needs: (?P<needs>[^\n]+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
#: A file whose content a block shows: its name stands in the first line, or before the block.
_FILE = re.compile(r"# (?P<name>\w+\.(?:py|yaml))\b")
_FILE_BEFORE = re.compile(r"`(?P<name>\w+\.yaml)`:\n\n```yaml\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    """A fenced block: its page (a path from the root), its line there, and its mark, if it has one."""

    page: str
    line: int
    language: str
    text: str
    needs: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def fences() -> list[Fence]:
    """All fenced blocks of the pages."""
    return [
        fence
        for page in PAGES
        for fence in fences_of(page.relative_to(ROOT).as_posix(), page.read_text("utf-8"))
    ]


def fences_of(page: str, text: str) -> list[Fence]:
    """The fenced blocks of one page."""
    return [
        Fence(
            page, text.count("\n", 0, match.start("text")), match["language"], match["text"], match["needs"]
        )
        for match in _FENCE.finditer(text)
    ]


def blocks(*languages: str, needs: bool | None = None) -> list[Fence]:
    """The blocks in these languages: all, those with a mark (True), or those without (False)."""
    found = [fence for fence in fences() if fence.language in languages]
    return [fence for fence in found if needs is None or needs == (fence.needs is not None)]


def write_files(page: str, folder: Path) -> None:
    """Write the files that a page shows into `folder`; blocks of one file are its parts."""
    for fence in fences():
        if fence.page == page and (match := _FILE.match(fence.text)):
            with (folder / match["name"]).open("a", encoding="utf-8") as file:
                file.write(fence.text)
    for match in _FILE_BEFORE.finditer((ROOT / page).read_text("utf-8")):
        (folder / match["name"]).write_text(match["text"], encoding="utf-8")


def lines_of(text: str) -> list[str]:
    """The commands of a shell block, each on one line; comments and empty lines are left out."""
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def words_of(line: str) -> list[str]:
    """The words of a command, without its comment."""
    return shlex.split(line, comments=True)
