"""Pages are opened by their address, from the retrieval server's store."""

import pytest

from rag_r1.protocols import Failure, Refusal
from rag_r1.tools import make_tool
from tests.fakes.json_server import JsonStub

PAGES = {"https://a.org/": "short", "https://b.org/": "0123456789" * 3}


def access(request):
    return {
        "result": [{"url": u, "contents": PAGES[u]} if u in PAGES else None for u in request.body["urls"]]
    }


async def opened(answer, *calls):
    with JsonStub(answer) as server:
        tool = make_tool("page", {"tool": "page", "url": server.url, "part_chars": 20})
        assert not any(map(tool.fault, calls))
        results = await tool.call(calls)
        await tool.close()
    return results


async def test_a_page_is_shown_and_a_long_one_in_parts():
    results = await opened(
        access, {"url": "https://a.org/"}, {"url": "https://b.org/"}, {"url": "https://b.org/", "part": 2}
    )
    assert [documents[0].contents for documents in results] == [
        "short",
        "(part 1 of 2)\n01234567890123456789",
        "(part 2 of 2)\n0123456789",
    ]


async def test_a_part_may_be_written_as_a_number_with_a_point():
    ((second,),) = await opened(access, {"url": "https://b.org/", "part": 2.0})
    assert second.contents == "(part 2 of 2)\n0123456789"


async def test_a_page_or_a_part_that_is_not_there_is_the_policys_mistake():
    results = await opened(access, {"url": "https://c.org/"}, {"url": "https://b.org/", "part": 3})
    assert results == [
        Refusal("There is no page 'https://c.org/'. Open an address that a search has shown."),
        Refusal("There is no part 3: the last one is 2."),
    ]


@pytest.mark.parametrize("answer", [{"result": []}, (404, "no_pages"), {"result": [None, None]}])
async def test_a_server_without_pages_is_a_failure(answer):
    (results,) = await opened(lambda request: answer, {"url": "https://a.org/"})
    assert isinstance(results, Failure)
