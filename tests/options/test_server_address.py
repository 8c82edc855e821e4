"""Addresses of servers: nothing that may be a secret is taken, or repeated, wherever they are given."""

from __future__ import annotations

import importlib

import pytest

from rag_r1.inference.client import base_address
from rag_r1.options.declare import OptionsError
from rag_r1.options.from_config import options_from
from rag_r1.options.server_address import AN_ADDRESS, is_server_address, server_address
from rag_r1.rewards.judge_options import JudgeOptions
from rag_r1.runs.errors import RunError
from rag_r1.tools.elasticsearch import ElasticsearchOptions
from rag_r1.tools.mcp.tool import McpOptions
from rag_r1.tools.page import PageOptions
from rag_r1.tools.retrieval.options import RetrieverConfig
from rag_r1.tools.sparql import SparqlOptions
from rag_r1.training.doctor.command import check_retriever

SECRET = "hunter2"
WITH_A_SECRET = [
    f"http://user:{SECRET}@127.0.0.1:1",
    f"http://{SECRET}@127.0.0.1:1",
    f"https://:{SECRET}@[::1]:1/v1",
    f"http://user:{SECRET}/more@127.0.0.1:1",
    f"http://user:{SECRET} more@127.0.0.1:1",
    f"http://user%3A{SECRET}%40127.0.0.1:1",
    f"http://127.0.0.1:1/v1?api_key={SECRET}",
    f"http://127.0.0.1:1/v1#{SECRET}",
    f"http://user:\n{SECRET}@127.0.0.1:1",
    f"http:\\\\user:{SECRET}@127.0.0.1:1",
    f"ftp://user:{SECRET}@127.0.0.1",
    f"user:{SECRET}@127.0.0.1",
    f"http://127.0.0.1:{SECRET}",
    f"http://127.0.0.1,http://user:{SECRET}@127.0.0.1:1",
    f"http://127.0.0.1/user:{SECRET}@127.0.0.1:1",
]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000",
        "https://search.example.org/indexes/wiki/",
        "http://[::1]:8000/v1",
        "https://mcp.example.org/@owner/tool/mcp",
        "http://localhost:8000/retrieve",
    ],
)
def test_an_address_without_a_secret_is_taken_as_it_is(url):
    assert server_address(url) == url


@pytest.mark.parametrize("url", [*WITH_A_SECRET, "", "http://", "127.0.0.1:8000", "file:///etc/passwd"])
def test_what_may_hold_a_secret_is_refused_without_being_repeated(url):
    assert not is_server_address(url)
    with pytest.raises(ValueError) as refused:
        server_address(url)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("url", WITH_A_SECRET)
@pytest.mark.parametrize(
    ("cls", "more"),
    [
        (RetrieverConfig, {}),
        (JudgeOptions, {"model": "m"}),
        (SparqlOptions, {}),
        (ElasticsearchOptions, {"index": "wiki"}),
        (PageOptions, {}),
        (McpOptions, {}),
    ],
)
def test_no_option_takes_such_an_address(cls, more, url):
    with pytest.raises(OptionsError) as refused:
        options_from(cls, {"url": url, **more})
    assert "url must be an http(s) address" in str(refused.value) and SECRET not in str(refused.value)


COMMANDS = {
    "serve": ("rag_r1.serving.command", "--model m --retriever-url URL"),
    "serve, its model": ("rag_r1.serving.command", "--model m --base-url URL"),
    "chat": ("rag_r1.serving.terminal.command", "--url URL"),
    "mcp": ("rag_r1.serving.mcp.command", "--retriever-url URL"),
    "mcp, its model": ("rag_r1.serving.mcp.command", "--base-url URL --model m"),
    "mcp --tools": ("rag_r1.serving.mcp.command", "--tools URL"),
    "eval": ("rag_r1.evaluation.command", "--data q --out OUT --model m --base-url URL"),
    "eval, its search": ("rag_r1.evaluation.command", "--data q --out OUT --model m --retriever-url URL"),
    "eval, its judge": ("rag_r1.evaluation.command", "--data q --out OUT --model m --judge-url URL"),
    "eval modes": (
        "rag_r1.evaluation.modes",
        "--data q --out OUT --model m --trained t --base-url http://127.0.0.1:1 --trained-url URL",
    ),
    "traces": ("rag_r1.sft.traces_command", "--questions q --out OUT --teacher-url URL --teacher-model m"),
    "filter": ("rag_r1.sft.filter_command", "--questions q --out OUT --url URL --model m"),
    "corpus": ("rag_r1.corpus.command", "check --data q --corpus c --out OUT --bm25-url URL"),
    "doctor": ("rag_r1.training.doctor.command", "--retriever URL"),
}


@pytest.mark.parametrize("url", [WITH_A_SECRET[0], WITH_A_SECRET[6], WITH_A_SECRET[10]])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_takes_such_an_address_or_shows_it(name, url, tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.setattr(
        "rag_r1.training.doctor.command.find_all", check_retriever
    )  # the rest of it takes seconds
    module, words = COMMANDS[name]
    given = [word.replace("OUT", str(tmp_path / "out")).replace("URL", url) for word in words.split()]
    try:
        status = importlib.import_module(module).main(given)
    except SystemExit as ended:
        status = ended.code
    shown = "".join(capsys.readouterr()) + caplog.text
    assert status in (1, 2) and AN_ADDRESS.split(",")[0] in shown
    assert SECRET not in shown and not (tmp_path / "out").exists()


def test_the_doctor_does_not_show_the_address_of_the_environment(monkeypatch, capsys):
    monkeypatch.setattr("rag_r1.training.doctor.command.find_all", check_retriever)
    monkeypatch.setenv("RETRIEVER_URL", WITH_A_SECRET[0])
    from rag_r1.training.doctor import command

    assert command.main([]) == 1
    assert "RETRIEVER_URL" in (shown := capsys.readouterr().out) and SECRET not in shown


@pytest.mark.parametrize("url", WITH_A_SECRET)
def test_an_endpoint_does_not_repeat_its_address(url):
    with pytest.raises(RunError) as refused:
        base_address(url)
    assert SECRET not in str(refused.value)
