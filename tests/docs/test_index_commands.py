"""Every `rag-r1 index` command that a page or the help shows is one that its own parser takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from retrieval_server import (
    build_index,
    build_options,
    import_index,
    serve_options,
    shard_index,
    start_retrieval,
)
from retrieval_server.command_line import parse

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "retrieval_server" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text("utf-8") for page in PAGES} | {
    module.__name__: module.__doc__ for module in (build_index, import_index, shard_index, start_retrieval)
}
LINE = re.compile(r"^ *(?:[A-Z_]+=\S+ )?rag-r1 index (.*)$", re.MULTILINE)


def shown(text: str) -> list[list[str]]:
    """The words after `rag-r1 index` of the command lines in a text."""
    return [shlex.split(line, comments=True) for line in LINE.findall(text.replace("\\\n", " "))]


def takes(command: str, *words: str) -> object:
    """What the parser of a command makes of these words; ends the process where they do not fit."""
    if command == "serve":
        return serve_options.parse_args(None, words)
    if command == "split":
        return parse(shard_index.ShardCommand, None, words)
    return build_options.parse_args(None, [*(["import"] if command == "import" else []), *words])


@pytest.mark.parametrize("place", [name for name, text in TEXTS.items() if shown(text)])
def test_every_command_that_is_shown_is_taken(place: str):
    for words in shown(TEXTS[place]):
        if "..." not in words:
            takes(*words)


def test_commands_are_found_with_their_continuations_and_a_wrong_one_is_refused():
    text = "    KEY=1 rag-r1 index serve --web \\\n        serper  # comment\nsee rag-r1 index build"
    assert shown(text) == [["serve", "--web", "serper"]]
    with pytest.raises(SystemExit):
        takes("build", "--corpus", "c.jsonl", "--out", "o", "--no-such-flag")
    assert {"build", "import", "split", "serve"} <= {
        words[0] for text in TEXTS.values() for words in shown(text)
    }
