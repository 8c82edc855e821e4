"""`--log-queries` writes the words of queries into the log with no other flag."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from retrieval_server.serve_options import parse_args

from ..test_scripts import wait_until_ready

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ([], "warning"),
        (["--log-queries"], "info"),
        (["--log-format", "json"], "info"),
        (["--log-queries", "--log-level", "debug"], "debug"),
        (["--log-format", "json", "--log-level", "error"], "error"),
    ],
)
def test_the_level_without_a_flag_of_its_own_is_the_one_at_which_requests_have_lines(flags, level):
    assert parse_args("", ["--index", "i", *flags]).logs.level == level


@pytest.mark.parametrize("level", ["warning", "error"])
def test_a_level_at_which_nothing_of_it_would_be_written_is_refused(level, capsys):
    with pytest.raises(SystemExit):
        parse_args("", ["--index", "i", "--log-queries", "--log-level", level])
    assert f"--log-queries: with --log-level {level}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("asked", [True, False])
def test_the_words_of_a_query_stand_in_the_log_if_they_are_asked_for(bm25_index, tmp_path, asked):
    command = [sys.executable, "retrieval_server/start_retrieval.py", "--index", str(bm25_index)]
    flags = ["--log-queries"] if asked else []
    port = 20_000 + os.getpid() % 20_000 + asked
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([*command, "--port", str(port), *flags], cwd=ROOT, stderr=log)
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}")
            found = httpx.post(f"http://127.0.0.1:{port}/retrieve", json={"queries": ["Where is Ulm?"]})
            assert found.status_code == 200
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert ("Where is Ulm?" in (tmp_path / "log").read_text()) == asked
