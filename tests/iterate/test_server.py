"""Before a step that searches, the server serves the index of that step, or the loop ends with the reason."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx
import pytest

from rag_r1.iterate.plan import ServerSpec
from rag_r1.iterate.server import LoopServer
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.local_server import build_index
from tests.fakes.json_server import JsonStub


def test_an_index_is_ordered_once_and_again_by_the_next_start(loop, server):
    for _ in range(2):
        with LoopServer(ServerSpec(url=loop.url), loop.out) as service:
            for _ in range(3):
                assert service.serve(loop.folder / "first") == loop.url
    assert server.orders == [str(loop.folder / "first")] * 2


def test_a_reload_that_is_under_way_is_waited_for(loop, server, monkeypatch):
    monkeypatch.setattr("rag_r1.iterate.server._RETRY_S", 0.01)
    server.busy = 1
    with LoopServer(ServerSpec(url=loop.url), loop.out) as service:
        service.serve(loop.folder / "first")
    assert server.orders == [str(loop.folder / "first")]


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"encoder": "other"}, "encoder is 'other', and 'first' in"),
        ({"passages": 4}, "passages is 4, and 3 in"),
        # A copy of OUT on the server's machine may be older than the last training of the same name.
        ({"encoder_sha256": "old"}, "encoder_sha256 is 'old', and None in"),
    ],
)
def test_a_server_that_serves_something_else_is_refused_with_both_values(loop, server, lie, message, capsys):
    server.lies = lie
    assert loop.run("--rounds", "1") == 1
    assert message in capsys.readouterr().err
    assert not (loop.out / "start" / "evaluation" / "run").exists()


def test_a_server_that_was_restarted_with_another_index_is_noticed_before_the_next_step(loop, server):
    with LoopServer(ServerSpec(url=loop.url), loop.out) as service:
        service.serve(loop.folder / "first")
        server.serves = {**server.serves, "passages": 4}
        with pytest.raises(RunError, match="passages is 4, and 3 in"):
            service.serve(loop.folder / "first")


def test_an_index_that_does_not_load_ends_the_loop_with_the_servers_reason(loop, tmp_path):
    with LoopServer(ServerSpec(url=loop.url), loop.out) as service:
        (tmp_path / "no_index").mkdir()
        (tmp_path / "no_index" / "manifest.json").write_text('{"count": 1, "corpus": {"sha256": "x"}}')
        service.server.paths[str(tmp_path)] = "/elsewhere"
        with pytest.raises(RunError, match="HTTP 422.*The old index keeps serving.*server.paths"):
            service.serve(tmp_path / "no_index")


def test_the_servers_machine_may_see_folders_elsewhere(loop, tmp_path):
    server = ServerSpec(url=loop.url, paths={str(tmp_path / "a"): "/mnt/a"})
    service = LoopServer(server, loop.out)
    assert service.path_on_server(tmp_path / "a" / "index") == "/mnt/a/index"
    assert service.path_on_server(tmp_path / "b" / "index") == str(tmp_path / "b" / "index")


def test_a_server_that_does_not_answer_is_told_with_its_key(loop):
    with LoopServer(ServerSpec(url="http://127.0.0.1:9"), loop.out) as service:
        with pytest.raises(RunError, match="no retrieval server answers at http://127.0.0.1:9.*server.url"):
            service.serve(loop.folder / "first")


def test_a_server_that_hangs_is_told_before_it_may_take_an_hour_to_load(loop, monkeypatch):
    monkeypatch.setattr("rag_r1.iterate.server.FIRST_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with LoopServer(ServerSpec(url=url), loop.out) as service:
            for ask in (service.check, lambda: service.serve(loop.folder / "first")):
                with pytest.raises(RunError, match=f"the search at {url} does not work .*server.url"):
                    ask()


@pytest.mark.parametrize(
    "answer", [(200, "<html>"), (200, "[" * 100_000), (503, "{}"), 7, {"indexes": [1]}, {"indexes": {"a": 3}}]
)
def test_an_address_of_an_index_that_answers_with_something_else_is_not_ready(tmp_path, answer):
    with JsonStub(lambda request: answer) as server:
        with LoopServer(ServerSpec(url=f"{server.url}/indexes/a"), tmp_path) as service:
            with pytest.raises(RunError, match="/indexes/a is not ready.*server.url"):
                service.index_facts()


@pytest.mark.parametrize(("token", "fault"), [("", "requires a token"), ("x", "does not accept the token")])
def test_a_missing_token_and_a_wrong_one_are_told_apart(loop, monkeypatch, token, fault):
    monkeypatch.setenv("RETRIEVAL_TOKEN", token)
    with JsonStub(lambda request: {"status": "ready"} if request.method == "GET" else (401, "{}")) as server:
        with LoopServer(ServerSpec(url=server.url), loop.out) as service:
            with pytest.raises(RunError, match=f"{fault}: set the variable RETRIEVAL_TOKEN"):
                service.serve(loop.folder / "first")


@pytest.mark.slow
def test_the_real_server_is_started_here_takes_the_next_index_and_ends_with_the_loop(tmp_path):
    folders = []
    for number in (1, 2):
        corpus = tmp_path / f"corpus{number}.jsonl"
        rows = [{"id": f"{number}-{i}", "contents": f"a passage {i}"} for i in range(number + 1)]
        corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
        folders.append(build_index(corpus, tmp_path / f"index{number}" / "index", "--backend", "bm25"))
    out = tmp_path / "out"
    out.mkdir()
    with LoopServer(ServerSpec(), out) as service:
        for number, index in enumerate(folders, 1):
            url = service.serve(index)
            assert service.index_facts()["passages"] == number + 1
            request = {"queries": ["a passage"], "topk": 1}
            answer = httpx.post(f"{url}/retrieve", json=request, trust_env=False)
            assert answer.json()["result"][0][0]["id"].startswith(f"{number}-")
        manifest = Path(folders[0]) / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"count": 2', '"count": 5'))
        with pytest.raises(RunError, match="does not load .*index1.*HTTP 422"):
            service.serve(folders[0])
        assert service.index_facts()["passages"] == 3  # the old index keeps serving
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/ready", trust_env=False)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, '{"hello": "world"}'), "HTTP 200 to GET /ready"),
        ((404, "{}"), "HTTP 404 to GET /ready"),
        ((500, '{"status": "ready"}'), "HTTP 500 to GET /ready"),
        ((401, "{}"), "requires a token: set the variable RETRIEVAL_TOKEN"),
    ],
)
def test_what_is_no_retrieval_server_is_named_before_the_first_step(answer, message, tmp_path):
    with JsonStub(lambda asked: answer) as stub:
        with pytest.raises(RunError, match=message):
            LoopServer(ServerSpec(url=stub.url), tmp_path).check()


def test_a_server_that_loads_its_index_passes_the_check(tmp_path):
    with JsonStub(lambda asked: (503, '{"error": "loading"}')) as stub:
        LoopServer(ServerSpec(url=stub.url), tmp_path).check()
