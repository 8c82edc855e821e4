"""The tool `documents` searches a folder."""

import asyncio

import pytest

from rag_r1.protocols import Document
from rag_r1.runs.errors import RunError
from rag_r1.tools import make_tool
from rag_r1.tools.documents.tool import PassageIndex
from rag_r1.tools.lazy import LazyValue
from tests.tools.made_documents import folder_of_documents

ROWS = [
    {"id": "1", "title": "Ferry", "text": "The ferry leaves at nine."},
    {"id": "2", "title": "Tides", "text": "The tide turns twice a day."},
    {"id": "3", "title": "渡轮", "text": "渡轮九点出发。"},
]


async def test_it_finds_passages_of_the_folder_and_indexes_it_once(tmp_path):
    docs = folder_of_documents(tmp_path / "docs")
    tool = make_tool("notes", {"tool": "documents", "folder": str(docs), "topk": 1})
    assert not (docs / ".rag_r1_index").exists(), "nothing is read before the first call"
    ferry, none = await tool.call([{"query": "When does the ferry leave?"}, {"query": "zebra"}])
    assert [(item.id, item.title, item.text) for item in ferry] == [
        ("sub/notes.txt#1", '"notes"', "The ferry leaves at nine.")
    ]
    assert none == [] and ferry[0].score > 0
    (docs / ".rag_r1_index" / "corpus.jsonl").unlink()
    assert await tool.call([{"query": "When does the ferry leave?"}]) == [ferry]


def test_passages_that_share_no_word_are_not_found_and_chinese_is_searched_by_characters():
    index = PassageIndex(ROWS)
    assert [item.id for item in index.search("the tide, and the day", 3)] == ["2"]
    assert [item.id for item in index.search("渡轮几点出发？", 3)] == ["3"]
    assert (
        index.search("the a of", 3)
        == []
        == PassageIndex([{"id": "1", "title": "-", "text": "."}]).search("x", 1)
    )
    assert isinstance(index.search("ferry", 3)[0], Document)


async def test_a_folder_that_cannot_be_read_fails_each_call_until_it_is_repaired(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xff")
    tool = make_tool("notes", {"tool": "documents", "folder": str(tmp_path)})
    for _ in range(2):
        with pytest.raises(RunError, match="a.txt"):
            await tool.call([{"query": "x"}])
    (tmp_path / "a.txt").write_text("repaired")
    assert (await tool.call([{"query": "repaired"}]))[0]


async def test_loading_is_shared_and_outlives_a_caller_that_gives_up():
    loads, gate = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def load():
        loads.append(1)
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        return "loaded"

    once = LazyValue(load)
    given_up, other = asyncio.ensure_future(once.get()), asyncio.ensure_future(once.get())
    await asyncio.sleep(0)
    given_up.cancel()
    gate.set()
    assert await other == await once.get() == "loaded" and loads == [1]
