"""The HTTP app of the chat: OpenAI's API, `/chat/`, the page, health and metrics.

    POST /v1/chat/completions   answers a conversation, in one piece or as a stream of events (wire.py)
    GET  /v1/models             lists the only model
    POST /chat/                 {"text"} -> {"result"}: Agentic RAG-R1's API, one question without a history
    GET  /                      the chat page (page/)
    GET  /about                 the description of the server, for the page
    GET  /health, /metrics
    GET  /openapi.json          the schema of these routes

A server that is full or shutting down answers 503 with Retry-After. Every error is JSON in OpenAI's form, and
contains no internal details. The chats themselves are played by sessions.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from rag_r1.agent import Trajectory
from rag_r1.http_server.errors import RequestError, error_response, http_error_response
from rag_r1.http_server.request_guard import RequestGuard
from rag_r1.http_server.responses import disconnected, serve_files
from rag_r1.http_server.stopping import RETRY_S, STOPPING
from rag_r1.serving.admission import ServerFullError
from rag_r1.serving.conversation import read_conversation
from rag_r1.serving.page import PAGE_FILES, PageInfo
from rag_r1.serving.sessions import FAILURES, ChatParameters, ChatSession, ChatSessions, take_reasoning
from rag_r1.serving.wire import ChatRequest, Message, TextRequest, completion

#: Paths that need no token: the page, which has no data, and the health check.
OPEN_PATHS = frozenset({*PAGE_FILES, "/health"})
#: The error codes of chats that began and failed; these are not counted as refusals. A chat that is ended by
#: a stop counts as refused with `stopping`, unless its streamed response has begun.
_FAILED = frozenset(failure.code for failure in FAILURES.values())


def create_app(
    chats: ChatSessions,
    about: PageInfo,
    *,
    names: Iterable[str] = (),
    allowed: Iterable[str] = (),
    token: str | None = None,
) -> FastAPI:
    """Return the app. RequestGuard checks requests by `names` and `allowed`, the host names that they may
    use, and by `token`, which they must send as their bearer token."""
    # Without FastAPI's pages of documentation, which load scripts from a CDN.
    app = FastAPI(title="RAG-R1 chat", docs_url=None, redoc_url=None)
    _add_error_handlers(app, chats)
    _add_chat(app, chats)
    _add_page(app, about)
    _add_operations(app, chats)

    def count(reason: str) -> None:
        chats.metrics.refused.labels(reason).inc()

    app.add_middleware(
        RequestGuard, names=names, allowed=allowed, token=token, on_refusal=count, open_paths=OPEN_PATHS
    )
    return app


def _add_chat(app: FastAPI, chats: ChatSessions) -> None:
    """Add the routes that answer questions, and the list of models."""

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        chat = _begin_chat(chats, _chat_parameters(chats, body))
        if body.stream:
            return _ChatStream(chats, chat)

        def reply(trajectory: Trajectory) -> dict[str, Any]:
            return completion(chat.id, chats.name, trajectory, take_reasoning(chat), chat.details)

        return await _respond(request, chat, reply)

    @app.post("/chat/", response_model=None)
    @app.post("/chat", response_model=None, include_in_schema=False)
    async def chat_text(request: Request, body: TextRequest) -> Response:
        try:
            conversation = read_conversation([Message(role="user", content=body.text)])
        except ValueError as error:
            raise RequestError(400, "bad_input", f"text: {error}") from error
        chat = _begin_chat(chats, ChatParameters(conversation))
        return await _respond(request, chat, lambda trajectory: {"result": trajectory.answer or ""})

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {"id": chats.name, "object": "model", "created": 0, "owned_by": "rag-r1"}
        return {"object": "list", "data": [model]}


def _chat_parameters(chats: ChatSessions, body: ChatRequest) -> ChatParameters:
    """Return the question and the options of a request. Raises RequestError for those that are
    unsupported."""
    if body.model is not None and body.model != chats.name:
        raise RequestError(404, "model_not_found", f"the only model is {chats.name!r}")
    if reason := body.refusal():
        raise RequestError(400, "unsupported", reason)
    try:
        conversation = read_conversation(body.messages)
    except ValueError as error:
        raise RequestError(400, "bad_input", f"messages: {error}") from error
    usage = body.stream_options is not None and body.stream_options.include_usage
    return ChatParameters(conversation, body.temperature or 0.0, body.seed or 0, usage, tuple(body.ignored))


def _begin_chat(chats: ChatSessions, parameters: ChatParameters) -> ChatSession:
    """Begin a chat. Raises RequestError if the server is full or stopping."""
    if chats.stopped:
        raise _stopping()
    try:
        return chats.begin(parameters)
    except ServerFullError as full:
        headers = {"Retry-After": str(full.retry_after_s)}
        message = f"{full}: try again in {full.retry_after_s} s"
        raise RequestError(503, "overloaded", message, headers) from full


def _stopping() -> RequestError:
    """Return the error for a request that is refused or ended because the server stops."""
    return RequestError(*STOPPING, {"Retry-After": str(RETRY_S)})


async def _respond(
    request: Request, chat: ChatSession, reply: Callable[[Trajectory], dict[str, Any]]
) -> Response:
    """Wait for the end of a chat and return the response with the `reply` to its trajectory, or with status
    499 if the client has gone. Raises RequestError if the server stops before or the chat has failed."""
    trajectory = await _await_trajectory(request, chat)
    if trajectory is None:
        return Response(status_code=499)
    if trajectory.status in FAILURES:
        raise RequestError(*FAILURES[trajectory.status])
    return JSONResponse(reply(trajectory))


async def _await_trajectory(request: Request, chat: ChatSession) -> Trajectory | None:
    """Wait for the end of a chat and return its trajectory; None if the client goes away before, which ends
    the chat. Raises RequestError if the server stops before the chat has ended."""
    disconnection = asyncio.create_task(disconnected(request))
    try:
        await asyncio.wait({chat.task, disconnection}, return_when=asyncio.FIRST_COMPLETED)
        if chat.task.cancelled():
            raise _stopping()
        return chat.task.result() if chat.task.done() else None
    finally:
        disconnection.cancel()
        chat.task.cancel()


class _ChatStream(StreamingResponse):
    """The streamed response of a chat. When it ends or its client goes away, the chat is cancelled."""

    def __init__(self, chats: ChatSessions, chat: ChatSession):
        headers = {"X-Accel-Buffering": "no"}  # makes nginx forward each event at once
        super().__init__(chats.stream(chat), headers=headers, media_type="text/event-stream")
        self._chat = chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._chat.task.cancel()


def _add_page(app: FastAPI, about: PageInfo) -> None:
    """Add the files of the page, and the description that it shows."""

    @app.get("/about")
    async def page_info() -> dict[str, Any]:
        return about.public()

    serve_files(app, PAGE_FILES)


def _add_operations(app: FastAPI, chats: ChatSessions) -> None:
    """Add the health check and the metrics."""

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "running": chats.admission.running, "waiting": chats.admission.waiting}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(chats.metrics.page(), media_type=CONTENT_TYPE_LATEST)


def _add_error_handlers(app: FastAPI, chats: ChatSessions) -> None:
    """Answer every error in OpenAI's form, and count refusals."""
    app.exception_handler(HTTPException)(http_error_response)

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> JSONResponse:
        if error.code not in _FAILED:
            reason = "full" if error.code == "overloaded" else error.code
            chats.metrics.refused.labels(reason).inc()
        return await http_error_response(request, error)

    @app.exception_handler(RequestValidationError)
    async def bad_input(_: Request, error: RequestValidationError) -> JSONResponse:
        chats.metrics.refused.labels("bad_input").inc()
        # The deepest fault: content that is a list is also no text, but that is not what is wrong with it.
        fault = max(error.errors(), key=lambda fault: len(fault["loc"]))
        if fault["type"] == "json_invalid":
            return error_response(400, "bad_input", "the body is not JSON")
        field_name = ".".join(str(part)[:50] for part in fault["loc"] if part != "body") or "body"
        return error_response(400, "bad_input", f"{field_name}: {fault['msg']}")

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return error_response(*FAILURES["error"])
