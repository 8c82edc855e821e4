"""Every shell block of a page is run, or carries a mark that says what it needs (tests/docs/fences.py).

The blocks of a page without a mark are run as one script, in a folder that looks like a clone and has the
page's inputs in a small size (page_inputs.py). A server runs until the next one is started; its port, and
that of the addresses in the page, is a free one. The demo's policy stands in for a model of the Hub.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path

import pytest

from rag_r1.demo.policy import policy_path
from rag_r1.system.child_processes import free_port
from tests.docs.command_parsers import OTHERS, check_block, check_command
from tests.docs.fences import PAGES, ROOT, Fence, blocks, fences, fences_of, lines_of, write_files
from tests.docs.page_inputs import EXAMPLES

SHELL = ("bash", "sh", "console")
RUN: dict[str, list[Fence]] = defaultdict(list)
for _block in blocks(*SHELL, needs=False):
    RUN[_block.page].append(_block)
PROGRAM = re.compile(rf"^ {{4}}(?:[A-Z_]+=\S+ )*(?:rag-r1|python|bash|pip|{'|'.join(OTHERS)}) ", re.MULTILINE)
SERVER = re.compile(r"^(rag-r1 index serve|python retrieval_server/start_retrieval\.py)\b(.*)$", re.MULTILINE)
#: Starts a server in the background, and waits until it is ready; the one before is ended.
PREAMBLE = """\
set -euo pipefail
server=
stop() { [ -z "$server" ] || { kill "$server"; wait "$server" || true; }; }
trap stop EXIT
ready() { curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer ${RETRIEVAL_TOKEN:-}" \\
  "http://127.0.0.1:$PORT/ready" || true; }
serve() {
  stop
  "$@" & server=$!
  until [ "$(ready)" = 200 ]; do kill -0 "$server"; sleep 0.05; done
}
"""


def script_of(page: str, port: int) -> str:
    """The page's unmarked blocks as one script."""
    text = "\n".join(line for block in RUN[page] for line in lines_of(block.text))
    text = re.sub(r"(127\.0\.0\.1|localhost):8000|--port 8000", lambda match: match[0][:-4] + str(port), text)
    text = text.replace("https://api.example.org", f"http://127.0.0.1:{port}")
    text = text.replace("Qwen/Qwen2.5-7B-Instruct", str(policy_path("rag_r1_mq")))
    return PREAMBLE + SERVER.sub(rf"serve \1 --port {port}\2", text)


def without_fences(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the code of a clone, and programs that take this environment."""
    for name in ("rag_r1", "retrieval_server", "data_process", "examples", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = {
        "rag-r1": f'exec "{sys.executable}" -m rag_r1.cli "$@"',
        "python": f'exec "{sys.executable}" "$@"',
        "pip": ":",
        "curl": f'exec "{shutil.which("curl")}" --fail-with-body "$@"',
    }
    (tmp_path / "bin").mkdir()
    for name, line in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.mark.slow  # a process for each command
@pytest.mark.skipif(shutil.which("curl") is None, reason="left out: needs curl")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.full if e.is_heavy else ()) for page, e in EXAMPLES.items()],
)
def test_the_commands_of_a_page_run_and_leave_what_it_says(page: str, clone: Path):
    example = EXAMPLES[page]
    example.prepare(clone)
    serves = any(SERVER.search(block.text) for block in RUN[page])
    with nullcontext() if serves else example.server() as server:
        port = free_port() if serves else int(server.url.rpartition(":")[2])
        env = {**os.environ, "PATH": f"{clone / 'bin'}:{os.environ['PATH']}", "PORT": str(port)}
        env |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        command = ["bash", "-c", script_of(page, port)]
        done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for name in example.leaves if not (clone / name).exists()] == []
    assert [words for words in example.prints if words not in done.stdout] == []


@pytest.mark.slow  # trainings are composed
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=str(block), marks=() if block.page == "README.md" else pytest.mark.full)
        for block in blocks(*SHELL)
    ],
)
def test_every_command_of_a_page_is_one_that_its_own_parser_takes(block: Fence, tmp_path: Path):
    write_files(block.page, tmp_path)
    check_block(block.text, tmp_path)


RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
#: A command of a page of results: an indented block, or code in a line that has an option.
MEASURED = re.compile(
    r"^ {4}(\S.*(?:\n {4}.*)*)|`((?:[A-Z_]+=\S+ )*(?:rag-r1|python) [^`]*--[^`]+)`", re.MULTILINE
)


@pytest.mark.full  # imports the benchmarks
@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.name)
def test_the_commands_that_measured_the_results_are_still_taken(page: Path, tmp_path: Path):
    texts = [fence.text for fence in fences_of(page.name, page.read_text("utf-8")) if fence.language in SHELL]
    for block, inline in MEASURED.findall(without_fences(page)):
        texts += [inline.replace("\n", " ")] if inline else [block.replace("\n    ", "\n")]
    for text in texts:
        check_block(text.removesuffix(" ..."), tmp_path)


def test_a_shell_block_is_run_or_says_what_it_needs():
    assert {page for page in RUN if page not in EXAMPLES} == set(), "write EXAMPLES, or mark the block"
    assert set(EXAMPLES) == set(RUN)


def test_every_block_names_its_language_and_only_code_is_marked():
    known = {"", "bash", "bibtex", "json", "mermaid", "python", "text", "yaml"}
    assert [str(fence) for fence in fences() if fence.language not in known] == []
    assert [
        str(fence) for fence in fences() if fence.needs and fence.language not in ("bash", "python")
    ] == []


def test_a_mark_stands_right_above_its_block():
    marks = {
        page.relative_to(ROOT).as_posix(): page.read_text("utf-8").count("<!-- needs:") for page in PAGES
    }
    marked = {page: sum(fence.page == page for fence in fences() if fence.needs) for page in marks}
    assert marks == marked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_stand_in_fences_where_they_are_tested(page: Path):
    assert PROGRAM.findall(without_fences(page)) == []


@pytest.mark.parametrize(
    "command",
    [
        ["rag-r1", "eval", "--no-such-flag"],
        ["rag-r1", "index", "build", "--corpus", "c.jsonl", "--out", "o", "--no-such-flag"],
        ["python", "data_process/split_kilt_to_100.py", "--no-such-flag"],
    ],
)
def test_a_wrong_option_is_refused(command: list[str], tmp_path: Path):
    with pytest.raises(SystemExit, match="2"):
        check_command(command, tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "no_such_script.sh"],
        ["no-such-program"],
        ["rag-r1", "eval", "..."],
        ["pip", "install", "rag-r1[no_such_extra]"],
    ],
)
def test_a_command_that_is_not_there_or_not_whole_is_refused(command: list[str], tmp_path: Path):
    with pytest.raises(AssertionError):
        check_command(command, tmp_path)


def test_a_block_is_found_with_its_line_and_its_mark():
    text = "# A\n\n<!-- needs: a GPU -->\n```bash\na \\\n    b  # c\n# d\n\nE=1 f\n```\n\n```python\nx\n```\n"
    first, second = fences_of("a.md", text)
    assert (first.line, first.language, first.needs) == (4, "bash", "a GPU")
    assert lines_of(first.text) == ["a      b  # c", "E=1 f"]
    assert (second.line, second.language, second.needs) == (12, "python", None)
