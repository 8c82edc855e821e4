"""Every `rag-r1 index` command that the help shows is one that its own parser takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from retrieval_server import build_index, import_index, shard_index, start_retrieval
from tests.docs.command_parsers import check_command

TEXTS = {
    module.__name__: module.__doc__ for module in (build_index, import_index, shard_index, start_retrieval)
}
LINE = re.compile(r"^ *(?:[A-Z_]+=\S+ )?(rag-r1 index .*)$", re.MULTILINE)


def shown(text: str) -> list[list[str]]:
    """The command lines in a text."""
    return [shlex.split(line, comments=True) for line in LINE.findall(text.replace("\\\n", " "))]


@pytest.mark.parametrize("module", TEXTS)
def test_every_command_of_the_help_is_taken(module: str, tmp_path: Path):
    commands = shown(TEXTS[module])
    assert commands
    for words in commands:
        if "..." not in words:
            check_command(words, tmp_path)


def test_commands_are_found_with_their_continuations():
    text = "    KEY=1 rag-r1 index serve --web \\\n        serper  # comment\nsee rag-r1 index build"
    assert shown(text) == [["rag-r1", "index", "serve", "--web", "serper"]]
