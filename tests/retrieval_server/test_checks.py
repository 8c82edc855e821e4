"""What is wrong on this machine is reported all at once, before any work, by every command."""

from __future__ import annotations

import shutil
import socket

import pytest

from retrieval_server import commands
from retrieval_server.errors import UserError, UserErrors, check_all
from retrieval_server.folder.manifest import MANIFEST

from .builders import edit_json


@pytest.fixture
def taken():
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


def refused(capsys, *words: object) -> str:
    """What a command says that does not start, and so prints nothing else."""
    assert commands.main(list(map(str, words))) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def missing(message: str, named: list[object]) -> list[object]:
    """What a message does not name."""
    return [name for name in named if str(name) not in message]


def test_serve_reports_all_problems_at_once(bm25_index, dense_index, tiny_bge, taken, tmp_path, capsys):
    unfinished, changed, other = tmp_path / "unfinished", tmp_path / "changed", tmp_path / "other-model"
    unfinished.mkdir()
    shutil.copytree(bm25_index, changed)
    (changed / "passages.arrow").unlink()
    shutil.copytree(tiny_bge, other)
    edit_json(other / "config.json", lambda config: config.update(hidden_dropout_prob=0.5))
    (tmp_path / "pages.jsonl").write_text('{"url": "u", "contents": "c"}\n{"url": "u"}\n')
    indexes = {"a": tmp_path / "absent", "b": unfinished, "c": changed, "d": dense_index}
    message = refused(
        capsys,
        "serve",
        *(word for name, folder in indexes.items() for word in ("--index", f"{name}={folder}")),
        *("--encoder", other, "--rerank", tmp_path / "no-model", "--pages", tmp_path / "pages.jsonl"),
        *("--web", "serper", "--replay", tmp_path / "no-recording", "--port", taken),
        *("--reload-root", tmp_path / "no-root"),
    )
    named = [tmp_path / "absent", MANIFEST, changed / "passages.arrow", f"{other}: encoder sha256"]
    named += [
        "--rerank",
        "pages.jsonl, line 2",
        "no-recording",
        "--reload-root",
        f"port {taken} of 127.0.0.1",
    ]
    assert missing(message, named) == [] and "9 problems" in message


def test_check_only_of_serve_names_what_would_be_served_and_leaves_nothing(bm25_index, tmp_path, capsys):
    record = tmp_path / "run.jsonl"
    words = ["--index", str(bm25_index), "--port", "0", "--web", "searxng", "--record", str(record)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEARXNG_URL", "http://127.0.0.1:9")
        assert commands.main(["serve", "--check-only", *words]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("all checks passed") and str(bm25_index) in line and not record.exists()


def test_all_checks_are_made_and_errors_that_are_no_users_pass():
    def fails(text: str):
        raise UserError(text)

    def fails_twice():
        check_all(lambda: fails("one"), lambda: fails("two"))

    assert check_all(lambda: 1, lambda: 2) == [1, 2]
    with pytest.raises(UserErrors) as error:
        check_all(fails_twice, lambda: 1, lambda: fails("two"), lambda: fails("three"))
    assert error.value.messages == ["one", "two", "three"]
    with pytest.raises(ZeroDivisionError):
        check_all(lambda: fails("one"), lambda: 1 / 0)
