"""Every whole command that a command's help or a docstring shows is one that its own parser takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.command_parsers import check_command
from tests.docs.fences import ROOT, words_of

TOPS = ("rag_r1", "retrieval_server", "data_process", "examples")
LINE = re.compile(
    rf"^ +((?:[A-Z_]+=\S+ )*(?:rag-r1 |python (?:-m )?(?:{'|'.join(TOPS)})\b)(?:[^\n]*\\\n)*[^\n]*)$",
    re.MULTILINE,
)
#: Stands for what a reader gives: `...`, or a word such as DIR.
PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z]{3,}\b(?!=)")


def shown(text: str) -> Iterator[list[str]]:
    """The whole commands with options in a text: their words, without what is said about them."""
    for command in LINE.findall(text):
        line = re.split(r" {3,}| &$", re.sub(r"\\\n\s*", " ", command).strip())[0]
        if " --" in line and not PLACEHOLDER.search(line):
            yield words_of(line)


@cache
def examples() -> dict[str, list[list[str]]]:
    """The commands in the strings of each module."""
    found = {}
    for module in sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py")):
        source = module.read_text("utf-8")
        if not LINE.search(source):
            continue
        nodes = list(ast.walk(ast.parse(source)))
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        texts = [n.value for n in nodes if isinstance(n, ast.Constant) and id(n) not in parts]
        if words := [words for text in texts if isinstance(text, str) for words in shown(text)]:
            found[module.relative_to(ROOT).as_posix()] = words
    return found


@pytest.mark.slow  # trainings are composed
@pytest.mark.parametrize("module", examples())
def test_every_command_of_the_help_is_taken(module: str, tmp_path: Path):
    for words in examples()[module]:
        check_command(words, tmp_path)


def test_commands_are_found_with_their_continuations_and_without_placeholders():
    text = (
        "    KEY=1 rag-r1 index serve --web \\\n        serper   # comment\nsee rag-r1 index build --out a\n"
        "  rag-r1 eval --model DIR\n  rag-r1 eval ... --card\n  rag-r1 eval modes   a model --before\n"
    )
    assert list(shown(text)) == [["KEY=1", "rag-r1", "index", "serve", "--web", "serper"]]
    assert {"rag_r1/evaluation/command.py", "retrieval_server/build_index.py"} <= set(examples())
