"""The way of a search from the action to the HTTP request is short."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp

import rag_r1
from rag_r1.protocols import load_protocol
from rag_r1.tools import close_tools, shared_tools
from tests.fakes.retriever import Retriever
from tests.fakes.scripted_engine import ANSWER, make_episode

PACKAGE = str(Path(rag_r1.__file__).parent)
SEARCHES = [f"<search> {query} </search>" for query in ("first", "second")]
#: On the way from the action to the request, both included; what needs more has a layer that only passes the
#: search on.
MOST_FILES, MOST_FUNCTIONS = 4, 8


class Hops:
    """The project's functions that were running or waiting when a task was created, by task, and when a
    request was sent: together the way of a search, over all its tasks."""

    def __init__(self, monkeypatch):
        self.callers: dict[asyncio.Task, list] = {}
        self.paths: list[list] = []
        post = aiohttp.ClientSession.post

        def traced_post(*args, **options):
            self.paths.append([*self.callers.get(asyncio.current_task(), ()), *self._stack()])
            return post(*args, **options)

        monkeypatch.setattr(aiohttp.ClientSession, "post", traced_post)

    def make_task(self, loop, coroutine, **options):
        """The task factory of the event loop."""
        before = [*self.callers.get(asyncio.current_task(loop), ()), *self._stack()]
        task = asyncio.Task(coroutine, loop=loop, **options)
        self.callers[task] = before
        return task

    @staticmethod
    def _stack() -> list:
        """The code of the project's functions on the stack, outermost first."""
        frame, codes = sys._getframe(2), []
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                codes.insert(0, frame.f_code)
            frame = frame.f_back
        return codes


def test_a_search_passes_few_files_and_functions_on_its_way_to_the_server(monkeypatch):
    hops = Hops(monkeypatch)

    async def play(url):
        asyncio.get_running_loop().set_task_factory(hops.make_task)
        episode = make_episode(load_protocol("search_r1"), [*SEARCHES, ANSWER])
        episode.tools = shared_tools({"url": url}, {})
        record = await episode.run("id", "Who?", [1])
        await close_tools(episode.tools)
        assert [turn.queries for turn in record.turns] == [["first"], ["second"], []]

    with Retriever({"1": "Rome"}) as server:
        asyncio.run(play(server.url))
        assert server.queries == ["first", "second"]
    assert len(hops.paths) == 2
    way = hops.paths[1]  # the first search makes the tool
    way = way[[code.co_name for code in way].index("_call") :]
    assert (way[0].co_qualname, way[-1].co_qualname) == ("_call", "RetrievalClient._request")
    assert len(way) <= MOST_FUNCTIONS, [code.co_qualname for code in way]
    assert len({code.co_filename for code in way}) <= MOST_FILES, {code.co_filename for code in way}
