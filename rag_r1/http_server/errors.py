"""The errors of the chat server and the explorer, as JSON in OpenAI's format.

An error has an HTTP status, a `code` by which programs recognise it, and a `reason`, which is a sentence for
people.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

#: Status -> code, for errors that the framework raises itself.
_FRAMEWORK_CODES = {404: "not_found", 405: "method_not_allowed"}


class ErrorReply(NamedTuple):
    """The parts of an error, in the order in which RequestError and `error_response` take them."""

    status: int
    code: str
    reason: str


class RequestError(HTTPException):
    """Raised by a route to answer its request with an error."""

    def __init__(self, status: int, code: str, reason: str, headers: dict[str, str] | None = None):
        super().__init__(status, reason, headers)
        self.code = code


def error_body(code: str, reason: str) -> dict[str, Any]:
    """Return the JSON of an error in OpenAI's format."""
    return {"error": {"message": reason, "type": code, "code": code, "param": None}}


def error_response(
    status: int, code: str, reason: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return a response with an error in OpenAI's format."""
    return JSONResponse(error_body(code, reason), status, headers)


async def http_error_response(_: Request, error: HTTPException) -> JSONResponse:
    """Return the response to a RequestError, or to an error of the framework, whose code is `bad_input`
    unless its status has a code. This is an exception handler of FastAPI."""
    code = getattr(error, "code", None) or _FRAMEWORK_CODES.get(error.status_code, "bad_input")
    return error_response(error.status_code, code, str(error.detail), error.headers)
