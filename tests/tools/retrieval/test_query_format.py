"""`agentic_input`: the client asks the server for its separator; records keep the query and what was sent."""

from __future__ import annotations

import asyncio

import pytest

from rag_r1.agent import Budget, Episode, FailurePolicy, Trajectory
from rag_r1.data.evidence import GoldEvidence
from rag_r1.options.declare import OptionsError
from rag_r1.probes.searches import GoldSearch, WithoutGoldSearch
from rag_r1.protocols import Document, Failure, load_protocol
from rag_r1.protocols.retriever_query import CallContext, Context
from rag_r1.rollouts.search_check import try_search
from rag_r1.runs.errors import RunError
from rag_r1.tools import RetrievalClient, RetrieverConfig, close_tools, make_tool, search_tools, shared_tools
from tests.fakes.json_server import Asked, JsonStub
from tests.fakes.scripted_engine import ANSWER, Characters, Engine

QUESTION = "Who directed the film?"
TURNS = [
    "<think>First the film.</think><search> the film </search>",
    "<think>Now who.</think><search> its director </search>",
    ANSWER,
]
READY = {"backend": "dense", "separator": " [SEP] ", "max_length": 256, "query_prefix": "query: "}


def context() -> Context:
    return Context(lambda: CallContext(QUESTION))


def served(ready=READY):
    """A server that finds one document for every query, with this answer at /ready."""

    def answer(asked: Asked):
        if asked.path.endswith("/ready"):
            return ready(asked) if callable(ready) else ready
        results = [{"document": {"id": "1", "contents": '"Rome"\nA city.'}, "score": 1.0}]
        return {"result": [results for _ in asked.body["queries"]]}

    return JsonStub(answer)


def played(tools, turns=TURNS) -> Trajectory:
    """One episode with the tools that `tools()` makes within its event loop."""

    async def play() -> Trajectory:
        built = tools()
        policy = FailurePolicy(retries=1, wait_s=0.0)
        episode = Episode(load_protocol("search_r1"), Budget(), Engine(turns), built, Characters(), policy)
        try:
            return await episode.run("t", QUESTION, [1])
        finally:
            await close_tools(built)

    return asyncio.run(play())


def options(server, **more):
    return {"url": server.url, "retries": 1, "backoff_s": 0.0, "agentic_input": True, **more}


def queries(server) -> list[str]:
    """The queries that reached the server, in order."""
    return [query for asked in server.asked if "/retrieve" in asked.path for query in asked.body["queries"]]


@pytest.mark.parametrize(
    ("mode", "sent"),
    [
        (None, ["Who directed the film? [SEP] the film", "Who directed the film? [SEP] its director"]),
        ("history", [f"{QUESTION} [SEP] the film", f"{QUESTION} [SEP] the film [SEP] its director"]),
        ("reasoning", ["First the film. [SEP] the film", "Now who. [SEP] its director"]),
        ("plain", ["the film", "its director"]),
    ],
)
def test_an_episode_sends_the_query_in_its_context_and_records_both(mode, sent):
    with served() as server:
        record = played(lambda: shared_tools(options(server, mode=mode), {}))
        assert queries(server) == sent
    calls = [call for turn in record.turns for call in turn.calls]
    assert [call.query for call in calls] == ["the film", "its director"]
    assert [(call.sent or call.arguments)["query"] for call in calls] == sent
    kept = Trajectory.from_dict(record.to_dict())
    assert [call.sent for turn in kept.turns for call in turn.calls] == [call.sent for call in calls]
    assert record.status == "answered" and record.n_searches == 2


def test_without_agentic_input_nothing_is_asked_and_nothing_is_added():
    with served() as server:
        record = played(lambda: shared_tools(options(server, agentic_input=False), {}))
        assert {asked.path for asked in server.asked} == {"/retrieve"}
        assert queries(server) == ["the film", "its director"]
    assert [call.sent for turn in record.turns for call in turn.calls] == [None, None]


def test_the_separator_is_asked_for_once():
    with served() as server:

        async def ask() -> None:
            client = RetrievalClient(RetrieverConfig(**options(server)))

            await asyncio.gather(*(client.call([{"query": f"q{i}"}], context()) for i in range(5)))
            await client.call([{"query": "q"}], context())
            await client.close()

        asyncio.run(ask())
        assert [asked.path for asked in server.asked].count("/ready") == 1


def test_a_token_that_no_header_can_have_is_a_failure_of_the_retriever(monkeypatch):
    monkeypatch.setenv("RETRIEVAL_TOKEN", "a\x01b")
    record = played(lambda: shared_tools({"url": "http://127.0.0.1:9", "agentic_input": True}, {}))
    assert {failure.kind for failure in record.failures} == {"retriever"}


def test_an_index_named_in_the_path_has_its_own_separator():
    ready = {**READY, "indexes": {"wiki": {"separator": "|", "max_length": 64, "query_prefix": ""}}}
    with served(ready) as server:
        played(lambda: shared_tools({**options(server), "url": f"{server.url}/indexes/wiki/retrieve"}, {}))
        assert [asked.path for asked in server.asked][:2] == ["/ready", "/indexes/wiki/retrieve"]
        assert queries(server)[0] == "Who directed the film?|the film"


@pytest.mark.parametrize(
    ("ready", "asked", "words"),
    [
        ({"backend": "bm25", "separator": None}, 2, "kind bm25, has no separator"),
        ((404, "{}"), 2, "HTTP 404"),
        ((503, "{}"), 4, "HTTP 503"),
        ((200, "no json"), 2, "/ready describes no index"),
    ],
)
def test_a_server_that_tells_no_separator_fails_the_search_and_is_never_sent_the_plain_query(
    ready, asked, words
):
    with served(ready) as server:
        record = played(lambda: shared_tools(options(server), {}), [TURNS[0], ANSWER])
        assert queries(server) == []
        # The guard repeats the call once, and the client what may be different later.
        assert [item.path for item in server.asked] == ["/ready"] * asked
    (failure,) = record.failures
    assert (failure.kind, record.turns[0].calls[0].status) == ("retriever", "failed")
    assert words in failure.detail and failure.detail.endswith("or set it to false")


async def test_an_evaluation_does_not_start_with_such_a_server():
    with served({"backend": "bm25", "separator": None}) as server:
        search = shared_tools(options(server), {})["search"]
        with pytest.raises(RunError, match="does not work .*kind bm25, has no separator; serve a dense"):
            await try_search(search, "http://127.0.0.1:9")
        assert queries(server) == []


def test_a_server_that_is_ready_later_is_asked_again():
    answers = [(503, "{}"), READY]
    with served(lambda asked: answers.pop(0)) as server:
        record = played(lambda: shared_tools(options(server), {}))
        assert queries(server) == [f"{QUESTION} [SEP] the film", f"{QUESTION} [SEP] its director"]
    assert record.failures == []


def test_another_server_under_tools_reads_the_context_too():
    with served() as server:
        entry = {"tool": "retrieval", **options(server), "limits": {"cache_size": 10}}
        played(lambda: {"search": make_tool("wiki", entry)})
        assert queries(server)[1] == f"{QUESTION} [SEP] its director"


@pytest.mark.parametrize("probe", [GoldSearch, WithoutGoldSearch])
def test_a_probe_around_the_search_sends_what_the_search_would(probe):
    with served() as server:

        def tools():
            tools_ = shared_tools(options(server), {})
            return {
                **tools_,
                **search_tools(probe(tools_["search"], GoldEvidence(passages=(Document("g", "gold"),)), 3)),
            }

        record = played(tools)
        assert queries(server)[1] == f"{QUESTION} [SEP] its director"
    assert record.turns[1].calls[0].sent == {"query": f"{QUESTION} [SEP] its director"}


def test_a_mode_without_agentic_input_is_a_mistake():
    with pytest.raises(OptionsError, match="rag_r1.retriever.mode history needs agentic_input: true"):
        RetrieverConfig(mode="history")
    with pytest.raises(OptionsError, match="rag_r1.retriever.mode must be"):
        RetrieverConfig(mode="both", agentic_input=True)
    assert RetrieverConfig(mode="plain").mode == "plain"


@pytest.mark.parametrize("mode", [None, "history"])
def test_a_query_is_sent_as_the_encoder_of_the_index_was_trained(mode):
    with served({**READY, "query_mode": "history"}) as server:
        played(lambda: shared_tools(options(server, mode=mode), {}))
        assert queries(server)[1] == f"{QUESTION} [SEP] the film [SEP] its director"


def test_another_mode_than_that_of_the_encoder_is_an_error_and_nothing_is_sent():
    with served({**READY, "query_mode": "history"}) as server:
        record = played(lambda: shared_tools(options(server, mode="agentic"), {}))
        assert queries(server) == []
    words = "rag_r1.retriever.mode: it is agentic, but the encoder of the index was trained with history"
    assert record.failures[0].detail.startswith(words)


def test_a_plain_query_needs_no_separator_but_no_other_training_either():
    for ready, sent in (({"backend": "bm25", "separator": None}, 2), ({**READY, "query_mode": "agentic"}, 0)):
        with served(ready) as server:
            played(lambda server=server: shared_tools(options(server, mode="plain"), {}))
            assert len(queries(server)) == sent


def test_an_index_that_is_reloaded_with_another_separator_is_asked_again():
    version = [1]

    def answer(asked: Asked):
        if asked.path == "/ready":
            return {**READY, "index_version": version[0], "separator": f" <{version[0]}> "}
        return {"result": [[] for _ in asked.body["queries"]]}

    server = JsonStub(answer, answer_headers=lambda: {"X-Index-Version": str(version[0])})

    async def search(client: RetrievalClient, query: str) -> None:
        [results] = await client.call([{"query": query}], context())
        assert not isinstance(results, Failure)

    async def ask() -> None:
        client = RetrievalClient(RetrieverConfig(**options(server)))
        await search(client, "a")
        await search(client, "b")
        version[0] = 2
        for query in "cde":  # the first of them learns of it by its answer
            await search(client, query)
        await client.close()

    with server:
        asyncio.run(ask())
        separators = [query.removeprefix(QUESTION)[:-1].strip() for query in queries(server)]
        assert separators == ["<1>", "<1>", "<1>", "<2>", "<2>"]
        assert sum(asked.path == "/ready" for asked in server.asked) == 2


async def test_a_client_that_is_closed_while_it_asks_fails_the_search_and_not_the_episode():
    asked = asyncio.Event()

    async def never(address: str):
        asked.set()
        await asyncio.Event().wait()

    client = RetrievalClient(RetrieverConfig(url="http://127.0.0.1:1", agentic_input=True))
    client._format._get = never
    waiting = asyncio.create_task(client.call([{"query": "q"}], context()))
    await asked.wait()
    await client.close()
    [results] = await waiting
    assert isinstance(results, Failure) and "the client was closed" in results.detail
    # A caller that is cancelled itself stays so.
    cancelled = asyncio.create_task(client.call([{"query": "q"}], context()))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await client.close()
