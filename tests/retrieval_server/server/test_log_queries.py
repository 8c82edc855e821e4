"""`--log-queries` writes the words of queries into the log with no other flag."""

from __future__ import annotations

import httpx
import pytest

from retrieval_server.command_line import parse
from retrieval_server.serve.options import ServeCommand


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
    assert parse(ServeCommand, "", ["--index", "i", *flags]).logs.level == level


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--log-queries"], []])
def test_the_words_of_a_query_stand_in_the_log_if_they_are_asked_for(bm25_index, start_server, capfd, flags):
    with start_server("--index", bm25_index, *flags) as server:
        answer = httpx.post(server.url + "/retrieve", json={"queries": ["Where is Ulm?"]})
        assert answer.status_code == 200
    assert ("Where is Ulm?" in capfd.readouterr().err) == bool(flags)
