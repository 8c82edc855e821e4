"""Errors of the HTTP servers for people: JSON in OpenAI's format, with a code and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

#: HTTP status -> code of the error, for errors that the framework raises itself.
_FRAMEWORK_CODES = {404: "not_found", 405: "method_not_allowed"}


class ErrorReply(NamedTuple):
    """The error with which a request is answered."""

    status: int
    #: The error's code in OpenAI's format.
    code: str
    #: The sentence for the client.
    reason: str


class RequestError(HTTPException):
    """A request is answered with an error. `code` is its code in OpenAI's format."""

    def __init__(self, status: int, code: str, reason: str, headers: dict[str, str] | None = None):
        super().__init__(status, reason, headers)
        self.code = code


def error_body(code: str, message: str) -> dict[str, Any]:
    """Return the JSON of an error in OpenAI's format."""
    return {"error": {"message": message, "type": code, "code": code, "param": None}}


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
