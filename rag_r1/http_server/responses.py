"""What the HTTP apps have in common besides errors: the files of a page, and the end of a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response


def serve_files(app: FastAPI, files: Mapping[str, tuple[Path, str]]) -> None:
    """Serve files from memory. `files` has the path and the content type of each address."""
    for address, (path, media_type) in files.items():
        app.get(address, include_in_schema=False)(_file_route(path.read_bytes(), media_type))


def _file_route(content: bytes, media_type: str) -> Callable[[], Any]:
    """Return a route that responds with these bytes."""

    async def serve() -> Response:
        return Response(content, media_type=media_type)

    return serve


async def disconnected(request: Request) -> None:
    """Wait until the client disconnects. The body of the request must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
