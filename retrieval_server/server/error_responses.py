"""Error responses: ``{"error": word, "reason": sentence}``, without internal details."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from retrieval_server.errors import ClientDisconnectedError, RequestError
from retrieval_server.server.wire import Error


def error_response(
    status: int, error: str, reason: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(Error(error=error, reason=reason).model_dump(), status, headers)


def add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ClientDisconnectedError)
    async def client_gone(_: Request, error: ClientDisconnectedError) -> Response:
        return Response(status_code=499)  # seen only in the metrics and the log

    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> JSONResponse:
        return error_response(error.status, error.error, error.reason, error.headers)

    @app.exception_handler(RequestValidationError)
    async def bad_input(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        keys = [part for part in first["loc"] if part != "body"]
        key_path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
        if first["type"] == "json_invalid":
            return error_response(422, "bad_input", f"the body is not JSON: {first['ctx']['error']}")
        return error_response(422, "bad_input", f"{key_path or 'body'}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 413:
            return error_response(413, "too_large", error.detail)
        if error.status_code == 400:  # FastAPI's answer to a body that it cannot parse at all
            return error_response(422, "bad_input", "the body is not JSON in UTF-8")
        word = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        return error_response(error.status_code, word, error.detail, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        reason = f"the search failed ({type(error).__name__}); see the server's log"
        return error_response(500, "internal", reason)
