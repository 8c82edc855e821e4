"""Limits the values and the nesting of JSON bodies, before objects are made of them.

For every wrong value FastAPI makes an error of several objects, although a response names only a few. So a
body within the limit of bytes could fill the memory and stop the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from retrieval_server.errors import JsonLimitError
from retrieval_server.json_limits import read_json


def limited_route(max_values: int) -> type[APIRoute]:
    """Return the class of routes whose JSON bodies have at most this many values (413), for `APIRouter`."""

    class LimitedRequest(Request):
        async def json(self) -> Any:
            try:
                return read_json(await self.body(), max_values)
            except JsonLimitError as error:
                raise HTTPException(413, f"the body is too large: {error}; send less at a time") from None

    class LimitedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handle_limited(request: Request) -> Response:
                return await handle(LimitedRequest(request.scope, request.receive))

            return handle_limited

    return LimitedRoute
