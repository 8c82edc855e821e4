"""Sessions that unpack nothing and bodies of a limited size; and that no client opens another session."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rag_r1.io.bounded_aiohttp import bounded_session, read_body
from rag_r1.io.errors import TooLargeError

ROOT = Path(__file__).parents[2]
PACKED = gzip.compress(b" " * (1 << 16))


def asked(
    answer: web.Response,
    use: Callable[[aiohttp.ClientResponse], Awaitable[object]],
    headers: dict[str, str] | None = None,
) -> tuple[object, web.Request]:
    """What `use` makes of a response, and the request."""

    async def main():
        requests = []

        async def handle(request: web.Request) -> web.Response:
            requests.append(request)
            return answer

        app = web.Application()
        app.router.add_get("/", handle)
        async with TestServer(app) as server, bounded_session(headers or {}, 30.0) as session:
            async with session.get(server.make_url("/")) as response:
                return await use(response), requests[0]

    return asyncio.run(main())


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_a_body_of_the_limit_is_read_whole(size):
    body, _ = asked(web.Response(body=b"x" * size), lambda response: read_body(response, size))
    assert body == b"x" * size


def test_a_body_of_one_byte_more_is_refused_and_its_connection_closed():
    async def use(response: aiohttp.ClientResponse) -> bool:
        with pytest.raises(TooLargeError, match="more than 1048576 bytes"):
            await read_body(response, 1 << 20)
        return response.closed

    assert asked(web.Response(body=b"x" * ((1 << 20) + 1)), use)[0] is True


def test_what_is_packed_was_not_asked_for_and_stays_packed():
    packed = web.Response(body=PACKED, headers={"Content-Encoding": "gzip"})
    key = {"Authorization": "Bearer k"}
    body, request = asked(packed, lambda response: read_body(response, 1 << 20), key)
    assert body == PACKED
    assert request.headers["Accept-Encoding"] == "identity" and key.items() <= request.headers.items()


def test_no_other_module_opens_a_session():
    openers = {
        str(path.relative_to(ROOT / "rag_r1"))
        for path in (ROOT / "rag_r1").rglob("*.py")
        if "ClientSession(" in path.read_text(encoding="utf-8")
    }
    # A stand-in for servers of the demo and of tests.
    assert openers == {"io/bounded_aiohttp.py", "demo/loopback.py"}
