"""Turns exceptions into error responses: `{"error": word, "reason": sentence}`, without internal details.

The sentence names the key or the path at fault and says what to send instead. The usual errors of pydantic
are rephrased in the terms of JSON; the rare others keep pydantic's own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from retrieval_server.errors import ClientDisconnectedError, RequestError
from retrieval_server.json_kind import json_kind
from retrieval_server.json_limits import MAX_DEPTH
from retrieval_server.server.wire import Error

#: The largest number of faults of a body that one response names; further ones are only counted.
_MAX_NAMED_FAULTS = 3
_EMPTY = 'the body is empty: send a JSON object, such as {"queries": ["Who wrote Emma?"]}'
#: Type of pydantic's error -> what the value must be.
_EXPECTED = {
    "string_type": "a string",
    "list_type": "a list",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "greater_than_equal": "at least {ge}",
    "model_attributes_type": "a JSON object",
    "dict_type": "a JSON object",
}


def error_response(
    status: int, error: str, reason: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Return a response with this status whose body is an `Error`."""
    return JSONResponse(Error(error=error, reason=reason).model_dump(), status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Add a handler for each kind of error to the app.

    All of them answer in JSON, except that for a client that has disconnected, which reads no answer.
    """

    @app.exception_handler(ClientDisconnectedError)
    async def client_gone(_: Request, error: ClientDisconnectedError) -> Response:
        return Response(status_code=499)  # visible only in the metrics and the log

    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> JSONResponse:
        return error_response(error.status, error.error, error.reason, error.headers)

    @app.exception_handler(RequestValidationError)
    async def bad_input(_: Request, error: RequestValidationError) -> JSONResponse:
        faults = error.errors()
        if faults[0]["type"] == "json_invalid":
            position = f"{faults[0]['ctx']['error']} at character {faults[0]['loc'][-1]}"
            return error_response(422, "bad_input", f"the body is not JSON: {position}; correct it")
        sentences = list(dict.fromkeys(map(_sentence, faults)))
        unnamed = len(sentences) - _MAX_NAMED_FAULTS
        suffix = f"; and {unnamed} more" if unnamed > 0 else ""
        return error_response(422, "bad_input", "; ".join(sentences[:_MAX_NAMED_FAULTS]) + suffix)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 413:
            return error_response(413, "too_large", error.detail)
        if error.status_code == 400:  # FastAPI's answer to a body that it cannot parse at all
            reason = f"the body is not uncompressed JSON in UTF-8, nested at most {MAX_DEPTH} deep"
            return error_response(422, "bad_input", reason)
        word = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        headers = dict(error.headers or {})
        reason = error.detail
        if error.status_code == 404:
            reason = _no_such_path(request)
        elif error.status_code == 405:
            reason = f"{request.method} is not for this path: use {headers.get('Allow', 'another method')}"
        return error_response(error.status_code, word, reason, headers)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        reason = f"the search failed ({type(error).__name__}); see the server's log"
        return error_response(500, "internal", reason)


def _sentence(fault: Mapping[str, Any]) -> str:
    """Return the sentence for a fault of a body: the key, what its value must be, and what it is."""
    parts = [part for part in fault["loc"] if part != "body"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")[:100]
    kind, limits, value = fault["type"], fault.get("ctx", {}), fault.get("input")
    if kind == "missing":
        return f"{key} is missing: give it" if key else _EMPTY
    if kind == "extra_forbidden":
        return f"{key}: there is no such key; /docs shows those of this path"
    if kind in ("too_long", "string_too_long"):
        is_text = kind == "string_too_long"
        unit, remedy = ("characters", "shorten it") if is_text else ("items", "send less at a time")
        return f"{key}: {len(value or ())} {unit}; at most {limits['max_length']}: {remedy}"
    if kind not in _EXPECTED:
        return f"{key or 'body'}: {fault['msg'].removeprefix('Value error, ')}"
    return f"{key or 'the body'} must be {_EXPECTED[kind].format(**limits)}, not {json_kind(value)}"


def _no_such_path(request: Request) -> str:
    """Return the sentence for an unknown path, with a similar path, if any, and all paths of the server."""
    if request.url.path == "/rerank":  # exists only on a server with a cross-encoder
        return "this server has no cross-encoder; it is started with --rerank NAME"
    paths = list(request.app.openapi()["paths"])
    similar = get_close_matches(request.url.path[:100], paths, n=1)
    suggestion = f"did you mean {similar[0]}? " if similar else ""
    return f"no such path; {suggestion}this server has {', '.join(paths)}"
