"""What the HTTP apps respond in common: the files of a page, and errors in OpenAI's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from rag_r1.http_server.request_guard import error_body

#: HTTP status -> code of the error, for errors that the framework raises itself.
_FRAMEWORK_CODES = {404: "not_found", 405: "method_not_allowed"}


def serve_files(app: FastAPI, files: Mapping[str, tuple[Path, str]]) -> None:
    """Serve files from memory. `files` has the path and the content type of each address."""
    for address, (path, media_type) in files.items():
        app.get(address, include_in_schema=False)(_file_route(path.read_bytes(), media_type))


def _file_route(content: bytes, media_type: str) -> Callable[[], Any]:
    """Return a route that responds with these bytes."""

    async def serve() -> Response:
        return Response(content, media_type=media_type)

    return serve


def error_response(
    status: int, code: str, reason: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return a response with an error in OpenAI's format. `code` identifies the error, and `reason` is its
    sentence."""
    return JSONResponse(error_body(code, reason), status, headers)


async def http_error_response(_: Request, error: HTTPException) -> JSONResponse:
    """Return the response to a RequestError or an error of the framework, as an exception handler of
    FastAPI."""
    code = getattr(error, "code", None) or _FRAMEWORK_CODES.get(error.status_code, "bad_input")
    return error_response(error.status_code, code, str(error.detail), error.headers)


async def disconnected(request: Request) -> None:
    """Wait until the client disconnects. The body of the request must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
