"""The MCP server of `rag-r1 mcp`: the search and the agent as tools for MCP clients.

    search(query)    passages of the retrieval server
    ask(question)    the agent's answer, what it searched for, and the passages that it was shown

The agent plays each question as `rag-r1 eval` and `rag-r1 serve` do (rag_r1/serving/agent.py), with a model
on an OpenAI-compatible server. A failure of a server is an error of the call; for the retrieval server, the
message has the address and a remedy. An episode without an answer is a normal result, whose status says how
it ended. A client's search has no question, so a retriever that reads the question beside the query
(`agentic_input`) gets the query as both. At most `concurrency` questions are answered at the same time, and
as many can wait; further questions are refused.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rag_r1.agent import Tool, Trajectory
from rag_r1.agent.interfaces import call_tool
from rag_r1.agent.trajectory import FAILURE_STATUSES
from rag_r1.data.evidence import title_of
from rag_r1.http_server.errors import RequestError
from rag_r1.http_server.request_body import WholeBodyMiddleware
from rag_r1.http_server.request_guard import has_bearer_token
from rag_r1.io.errors import TooLargeError
from rag_r1.options.server_address import search_fault
from rag_r1.protocols import Document, Failure
from rag_r1.protocols.retriever_query import CallContext, Context
from rag_r1.serving.agent import Play
from rag_r1.tools.mcp.limits import check_message

#: The most passages among the sources of an answer.
_MAX_SOURCES = 20
#: The most bytes of a request's body.
_MAX_BODY_BYTES = 1 << 20
#: The type of an exception and its message. The message is dropped, since the server may have written it.
_EXCEPTION = re.compile(r"(\w+): .*", re.DOTALL)
_ShortText = Annotated[str, Field(min_length=1, max_length=4000)]


class Passage(BaseModel):
    """A passage of the corpus."""

    id: str
    title: str
    text: str
    score: float | None = None

    @classmethod
    def of(cls, document: Document) -> Passage:
        """Return the passage of a document. A single line is the text of a passage without a title."""
        title, text = (title_of(document), document.text) if document.text else ("", document.contents)
        return cls(id=document.id, title=title, text=text, score=document.score)


class Passages(BaseModel):
    """The passages of a search, best first."""

    passages: list[Passage]


class Answered(BaseModel):
    """An answer, or null if the episode ended without one; `status` says how it ended."""

    answer: str | None
    status: str
    searches: list[str]
    sources: list[Passage]


def make_server(
    search_tool: Tool, play: Play | None = None, *, retriever_url: str, concurrency: int = 8
) -> MCPServer:
    """Return the server. Without `play` it only has the tool `search`. `retriever_url` is the address in the
    errors of failed searches, and `concurrency` the most questions that are answered at the same time."""
    instructions = "Searches a collection of passages, and answers from it."
    server = MCPServer("rag-r1", instructions=instructions, log_level="WARNING")

    @server.tool()
    async def search(query: _ShortText) -> Passages:
        """Search the collection for a query; returns the best passages with their ids."""
        [documents] = await call_tool(search_tool, [{"query": query}], Context(lambda: CallContext(query)))
        if isinstance(documents, Failure):
            fault = _search_fault(retriever_url, documents.kind, documents.detail)
            raise ToolError(fault or documents.reason)
        return Passages(passages=[Passage.of(document) for document in documents])

    if play is not None:
        _add_ask_tool(server, play, retriever_url, concurrency)
    return server


def _search_fault(url: str, kind: str, detail: str) -> str | None:
    """Return the message for a failure of the retrieval server, with its address and a remedy; None for any
    other failure. `kind` and `detail` are those of a Failure."""
    if kind != "retriever" or not detail:
        return None
    exception = _EXCEPTION.fullmatch(detail)
    return search_fault(url, exception[1] if exception else detail, "--retriever-url")


def _add_ask_tool(server: MCPServer, play: Play, retriever_url: str, concurrency: int) -> None:
    """Add the tool `ask`, which answers `concurrency` questions at a time and lets as many more wait."""
    slots = asyncio.Semaphore(concurrency)
    open_questions = 0  # questions that are being answered or waiting

    @server.tool()
    async def ask(question: _ShortText) -> Answered:
        """Ask the search agent a question. It searches the collection, several times if it has to, and
        returns a short answer with the passages that it was shown. Takes seconds to minutes."""
        nonlocal open_questions
        if open_questions >= 2 * concurrency:
            raise ToolError("Too many questions are being answered. Try again in a minute.")
        open_questions += 1
        try:
            async with slots:
                trajectory = await play(question)
        finally:
            open_questions -= 1
        if trajectory.answer is None and trajectory.status in FAILURE_STATUSES:
            reason = ""
            if trajectory.failures:
                last = trajectory.failures[-1]
                reason = _search_fault(retriever_url, last.kind, last.detail) or last.detail
            raise ToolError(f"The question could not be answered: {trajectory.status} {reason}".strip())
        return _answer_of(trajectory)


def _answer_of(trajectory: Trajectory) -> Answered:
    """Return the answer of an episode, with its queries and the first passages that the policy was shown."""
    calls = [call for turn in trajectory.turns for call in turn.calls]
    documents = {  # not by their ids alone, which some servers leave out
        (document.id, document.contents): document
        for call in calls
        for document in call.documents or ()
        if not document.verbatim
    }
    return Answered(
        answer=trajectory.answer,
        status=trajectory.status,
        searches=[call.query for call in calls if call.query is not None],
        sources=[Passage.of(document) for document in list(documents.values())[:_MAX_SOURCES]],
    )


def http_app(server: MCPServer, token: str | None) -> ASGIApp:
    """Return the server as an ASGI app with MCP's streamable HTTP at `/mcp`.

    The app is only for this machine and refuses requests with another Host or Origin. With a `token`,
    requests must have it as their bearer token. Bodies are read whole, within the limits of
    rag_r1/http_server/request_body.py, and their bytes, values and levels are limited."""
    app = WholeBodyMiddleware(server.streamable_http_app(host="127.0.0.1"), _check_body)
    if token is None:
        return app

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests without the token with HTTP 401, and pass the others on."""
        if scope["type"] != "lifespan" and not has_bearer_token(scope, token):
            refusal = Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})
            return await refusal(scope, receive, send)
        await app(scope, receive, send)

    return guarded


def _check_body(body: bytes) -> None:
    """Raise RequestError for a body that is too large: the package mcp would make so many objects from it
    that the event loop would be blocked."""
    try:
        if len(body) > _MAX_BODY_BYTES:
            raise TooLargeError(f"a message has more than {_MAX_BODY_BYTES >> 20} MiB")
        check_message(body)
    except TooLargeError as error:
        raise RequestError(413, "too_large", str(error)) from None
