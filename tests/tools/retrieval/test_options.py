"""The keys under `rag_r1.retriever`, and search tools of one's own."""

from __future__ import annotations

import asyncio

import pytest

from rag_r1.protocols import Document, load_protocol
from rag_r1.protocols.retriever_query import CallContext, Context
from rag_r1.tools import RetrieverConfig, make_searcher, make_tool, shared_searcher, shared_tools
from rag_r1.tools.function_tool import SearchTool
from tests.fakes.retriever import run
from tests.fakes.scripted_engine import ANSWER, make_episode


@pytest.mark.parametrize(
    ("url", "wire", "endpoint"),
    [
        ("http://h:1", "queries", "http://h:1/queries"),
        ("http://h:1/queries/", "queries", "http://h:1/queries"),
        ("http://h:1/retrieve", "queries", "http://h:1/queries"),
        ("http://h:1/queries", "retrieve", "http://h:1/retrieve"),
    ],
)
def test_the_wire_chooses_the_path_behind_the_address(url, wire, endpoint):
    assert RetrieverConfig(url=url, wire=wire).endpoint == endpoint


def test_an_unknown_wire_is_named():
    with pytest.raises(ValueError, match="rag_r1.retriever.wire must be retrieve or queries, not 'soap'"):
        RetrieverConfig(wire="soap")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"url": "localhost:8000"}, "rag_r1.retriever.url"),
        ({"topk": 0}, "rag_r1.retriever.topk"),
        ({"topk": True}, "rag_r1.retriever.topk"),
        ({"retries": -1}, "rag_r1.retriever.retries"),
        ({"timeout_s": 0}, "rag_r1.retriever.timeout_s"),
        ({"top_k": 3}, "rag_r1.retriever.top_k"),
        ({"tool": "no such tool"}, "rag_r1.retriever.tool"),
        ({"tool": "no_such_module:make"}, "rag_r1.retriever.tool"),
    ],
)
def test_a_wrong_key_is_named(options, key):
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        make_searcher(options)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/retrieve", "http://h:1/retrieve/"])
def test_an_address_with_and_without_the_route_is_understood(url):
    assert RetrieverConfig(url=url).endpoint == "http://h:1/retrieve"


def test_a_tool_of_ones_own_is_named_by_its_import_path():
    searcher = make_searcher({"tool": f"{__name__}:make_own", "language": "fr"})
    assert asyncio.run(searcher.search(["q"])) == [[Document("fr", "q")]]


class _Own:
    def __init__(self, options):
        self.options = options

    async def search(self, queries):
        return [[Document(self.options["language"], query)] for query in queries]


make_own = _Own


class InContext(SearchTool):
    """Searches for the question beside the query."""

    reads_context = True

    def __init__(self, options):
        self.sent = []

    async def call(self, arguments, context):
        place = context.get()
        context.sent |= {args["query"]: f"{place.question} {args['query']}" for args in arguments}
        self.sent += context.sent.values()
        return [[Document("1", context.sent[args["query"]])] for args in arguments]


async def test_a_search_tool_of_ones_own_may_read_the_context_and_the_record_keeps_what_it_sent():
    episode = make_episode(load_protocol("search_r1"), ["<search> q </search>", ANSWER])
    episode.tools = shared_tools({"tool": f"{__name__}:InContext"}, {})
    record = await episode.run("id", "Who?", [1])
    (call,) = record.turns[0].calls
    assert (call.arguments, call.sent) == ({"query": "q"}, {"query": "Who? q"})
    assert call.documents == [Document("1", "Who? q")]


class Careless(InContext):
    """Notes something other than texts."""

    async def call(self, arguments, context):
        context.sent = arguments if len(self.sent) else {"q": object()}
        self.sent.append(0)
        return [[] for _ in arguments]


async def test_what_a_tool_notes_that_is_no_text_is_not_recorded():
    episode = make_episode(load_protocol("search_r1"), ["<search> q </search>"] * 2 + [ANSWER])
    episode.tools = {"search": Careless({})}
    record = await episode.run("id", "Who?", [1])
    assert [call.sent for turn in record.turns for call in turn.calls] == [None, None]


async def test_what_depends_on_the_context_is_not_cached_by_the_arguments():
    tool = make_tool("own", {"tool": f"{__name__}:InContext", "limits": {"cache_size": 9}, "n": 1})
    for question in "ab":
        await tool.call([{"query": "q"}], Context(lambda question=question: CallContext(question)))
    assert tool.tool.sent == ["a q", "b q"]


def test_what_a_factory_makes_must_be_able_to_search():
    with pytest.raises(ValueError, match="gives neither a tool nor a searcher"):
        make_searcher({"tool": "builtins:dict"})


def test_a_factory_that_raises_does_so_in_each_search_until_it_makes_a_tool():
    async def main():
        searcher = shared_searcher({"tool": f"{__name__}:make_late", "language": "fr"})
        for _ in range(2):
            with pytest.raises(ConnectionError, match="not yet"):
                await searcher.search(["q"])
        for _ in range(2):
            assert await searcher.search(["q"]) == [[Document("fr", "q")]]

    run(main())
    assert made == ["not yet", "not yet", "made"]


made: list[str] = []


def make_late(options):
    made.append("not yet" if len(made) < 2 else "made")
    if made[-1] == "not yet":
        raise ConnectionError("not yet")
    return _Own(options)


async def test_trajectories_of_one_event_loop_share_a_searcher():
    item, same = shared_searcher({"topk": 3}), shared_searcher({"topk": 3})
    other = shared_searcher({"topk": 4})
    assert item is same and item is not other
