"""`rag-r1 view` as a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import duckdb
import httpx
import pytest

from rag_r1.explorer import cache, command, export
from rag_r1.explorer.command import main
from tests.explorer.made_records import record, write


def test_a_page_of_the_selected_trajectories_is_written(tmp_path, capsys):
    write(tmp_path / "runs" / "a.jsonl", [record("a"), record("b", "x"), record("c", "y")])
    out = tmp_path / "new" / "page.html"
    assert (
        main([str(tmp_path / "runs"), "--export", str(out), "--select", "right=false&source=hotpotqa"]) == 0
    )
    assert capsys.readouterr().out == f"2 trajectories: {out}\n"
    assert out.read_text(encoding="utf-8").count('"record":') == 2 and out.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("select", ["cause=cut", "cause=cutt", "nothing=1", "step_min=x"])
def test_a_selection_that_is_empty_or_wrong_is_one_sentence(tmp_path, capsys, select):
    write(tmp_path / "a.jsonl", [record("a")])
    assert main([str(tmp_path), "--export", str(tmp_path / "page.html"), "--select", select]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert ("must be one of" in line) == (select == "cause=cutt")
    assert line.startswith("error: --select") and not (tmp_path / "page.html").exists()


def test_all_wrong_filters_and_missing_records_are_found_by_check_only(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    words = [str(tmp_path / "empty"), "--export", str(tmp_path / "page.html"), "--check-only"]
    assert main([*words, "--select", "cause=nope&rigth=1&right=maybe"]) == 1
    message = capsys.readouterr().err
    assert [word for word in ("empty", "cause:", "'rigth'", "right:") if word not in message] == []


def test_a_page_that_cannot_have_all_that_is_selected_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(export, "MAX_TRAJECTORIES", 2)
    write(tmp_path / "a.jsonl", [record("a"), record("b"), record("c")])
    assert main([str(tmp_path), "--export", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("2 trajectories") and "2 of 3 selected" in printed.err
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count('"record":') == 2


def test_a_page_says_how_many_broken_lines_were_left_out(tmp_path, capsys):
    write(tmp_path / "a.jsonl", [record("a")])
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("{\n[]\n")
    assert main([str(tmp_path), "--export", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("1 trajectories") and "left out: 2 broken lines" in printed.err
    assert "line 2" in printed.err


def test_a_record_that_changes_while_a_page_is_written_is_one_sentence(tmp_path, capsys, monkeypatch):
    file, select = tmp_path / "a.jsonl", export.select_trajectories
    write(file, [record("a")])

    def rewrite(*args):
        write(file, [record("b")])
        return select(*args)

    monkeypatch.setattr(export, "select_trajectories", rewrite)
    assert main([str(tmp_path), "--export", str(tmp_path / "page.html")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line and not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [(export, "select_trajectories", ["--export", "page.html"]), (cache, "_open", ["--port", "0"])],
)
def test_a_broken_cache_is_one_sentence(tmp_path, capsys, monkeypatch, module, name, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.jsonl", [record("a")])
    monkeypatch.setattr(module, name, lambda *unused: duckdb.connect("/proc/cannot/be"))
    assert main([str(tmp_path), *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the cache in") and "make room there, or delete it" in line


@pytest.mark.parametrize(
    "words", [("--select", "right=false"), ("--export", "page.html", "--port", "1", "--allowed-host", "h")]
)
def test_flags_that_would_have_no_effect_are_refused(tmp_path, capsys, words):
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), *words])
    message = capsys.readouterr().err
    assert ended.value.code == 2 and all(word in message for word in words if word.startswith("--"))


def test_an_empty_host_and_an_address_in_place_of_a_name_are_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--host", "", "--allowed-host", "http://a"])
    message = capsys.readouterr().err
    assert "--host" in message and "--allowed-host" in message


def test_paths_without_records_and_a_host_that_has_no_encoding_are_named(tmp_path, capsys):
    (tmp_path / "q.jsonl").write_text('{"question": "Who?"}\n')
    assert main([str(tmp_path / "nothing"), str(tmp_path / "q.jsonl"), "--host", "é" * 70]) == 1
    message = capsys.readouterr().err
    assert str(tmp_path / "nothing") in message and "choose another --host" in message
    assert f"{tmp_path / 'q.jsonl'}: its first line is not a trajectory record" in message


def test_the_name_of_a_folder_is_any_text_in_utf_8(tmp_path, capsys):
    for name, printed in (("a\u3000b", "1 trajectories"), (os.fsdecode(b"a\xff"), "is not UTF-8")):
        file = write(tmp_path / name / "a.jsonl", [record("a")])
        main([str(file.parent), "--export", str(tmp_path / "page.html")])
        assert printed in "".join(capsys.readouterr())


def test_an_export_without_records_or_a_place_is_one_sentence(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "a.jsonl", [record("a")])
    for words, message in (
        (["empty", "--export", "page.html"], "no trajectories in"),
        (["a.jsonl", "--export", "/proc/page.html"], "/proc cannot be written to"),
    ):
        assert main([str(tmp_path / words[0]), words[1], str(tmp_path / words[2])]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_a_server_for_the_network_needs_a_token_that_a_header_can_hold(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    write(tmp_path / "a.jsonl", [record()])
    assert main([str(tmp_path), "--host", "0.0.0.0", "--port", "0"]) == 0
    assert command.TOKEN_VARIABLE in capsys.readouterr().err
    monkeypatch.setenv(command.TOKEN_VARIABLE, "s3cret")
    assert main([str(tmp_path), "--host", "0.0.0.0", "--port", "0"]) == 0
    assert capsys.readouterr().err == "" and command.TOKEN_VARIABLE not in os.environ
    monkeypatch.setenv(command.TOKEN_VARIABLE, "no token")
    assert main([str(tmp_path), "--port", "0", "--check-only"]) == 1
    assert command.TOKEN_VARIABLE in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--check-only"]])
def test_each_folder_without_records_is_named(tmp_path, capsys, monkeypatch, words):
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    (tmp_path / "none").mkdir()
    write(tmp_path / "run" / "a.jsonl", [record("a")])
    assert main([str(tmp_path / "run"), str(tmp_path / "none"), "--port", "0", *words]) == 0
    message = capsys.readouterr().err
    assert f"no records in {tmp_path / 'none'} yet" in message and message.count("no records in") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_runs_until_a_signal_and_ends_orderly(tmp_path, number):
    write(tmp_path / "a.jsonl", [record("a")])
    words = [sys.executable, "-m", "rag_r1.cli", "view", str(tmp_path), "--port", "0"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert httpx.get(f"{url}/api/version", trust_env=False).status_code == 200
            process.send_signal(number)
            assert process.wait(20) == 0
        finally:
            process.kill()
