"""A client of the chat API that yields a stream's events as they arrive.

`stream_answer` asks a question; `check_server` tries the server before the first one.

The server's texts come from documents and models, so they are not trusted. The bytes, the lines and the time
of an answer are limited while it arrives (rag_r1/io/bounded_http.py), and nothing is decompressed. The values
of a line are counted before objects are made from them, and data of another shape than the API's is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from rag_r1.io.bounded_http import bounded_http_client, is_web_page
from rag_r1.io.bounded_json import read_json
from rag_r1.io.retry import retry_after
from rag_r1.options.server_address import other_answer_fault, server_fault, web_page_fault
from rag_r1.protocols.actions import well_formed
from rag_r1.runs.errors import RunError

#: The most bytes of a line, lines of an answer, and bytes of a refusal.
_MAX_LINE_BYTES, _MAX_LINES, _MAX_REFUSAL_BYTES = 4 << 20, 100_000, 64 << 10
#: The most bytes of an answer (2,000 calls with passages of 16 KiB) and JSON values of a line (5,000 passages
#: of a call).
_MAX_BYTES, _MAX_VALUES = 64 << 20, 50_000
#: The most seconds until the server is reached, between two pieces (the server sends one at least every 15
#: s), and for a whole answer, including its time in the queue.
_CONNECT_S, _PIECE_S, _ANSWER_S = 10.0, 120.0, 3600.0
#: The most seconds until the server answers /health.
_HEALTH_S = 10.0


class ChatError(RunError):
    """There is no answer, for the reason in the message. `wait_s` is the number of seconds after which a full
    server may be asked again, 0 if it gives none."""

    def __init__(self, reason: str, wait_s: float = 0.0):
        super().__init__(reason)
        self.wait_s = wait_s


def check_server(url: str, token: str | None = None) -> None:
    """Raise ChatError if no server answers at an address within `_HEALTH_S`, if it answers with a web page,
    if it refuses the token, or if it has no list of models, as a retrieval server has none. Other faults of
    the server show with the first question."""
    try:
        with bounded_http_client(_HEALTH_S, _authorization(token)) as client:
            answer = client.get(f"{url}/health")
            statuses = [answer.status_code]  # 401 also of a proxy, which answers with a web page
            if not is_web_page(answer.headers):
                statuses.append(client.get(f"{url}/v1/models").status_code)
    except httpx.TimeoutException as error:
        raise _unreachable(url, f"no answer within {_HEALTH_S:g} s") from error
    except (httpx.NetworkError, httpx.ProtocolError, httpx.DecodingError) as error:
        raise _unreachable(url, f"{type(error).__name__}: {error}") from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return
    if 401 in statuses:
        raise ChatError(_token_fault(url))
    if is_web_page(answer.headers):
        raise ChatError(web_page_fault("chat", url, "--url"))
    if statuses[1] == 404:
        raise ChatError(other_answer_fault("chat server", url, "HTTP 404 to /v1/models", "--url"))


def _authorization(token: str | None) -> dict[str, str]:
    """Return the header with the token, if there is one."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def _token_fault(url: str) -> str:
    """Return the message for a refused token."""
    return f"HTTP 401: {url} wants another token: set CHAT_TOKEN to the one that it was started with"


def _unreachable(url: str, reason: str) -> ChatError:
    """Return the error for a server that does not answer."""
    return ChatError(server_fault("chat", url, reason, "rag-r1 serve --port {port}", "--url"))


def stream_answer(
    url: str, messages: Sequence[dict[str, str]], token: str | None = None
) -> Iterator[tuple[str, Any]]:
    """Ask a question and yield the stream: ("reasoning", text), ("answer", text), or an event's name with its
    data.

    `url` is the server's address without a path, and `messages` the conversation with the question. Close the
    iterator to stop the answer. Raises ChatError if there is no answer, or none of the API's form.
    """
    headers = _authorization(token)
    timeout = httpx.Timeout(_PIECE_S, connect=_CONNECT_S)
    conversation = [{name: well_formed(text) for name, text in message.items()} for message in messages]
    body = {"messages": conversation, "stream": True}
    try:
        with (
            bounded_http_client(_PIECE_S, headers, limit=_MAX_BYTES, body_s=_ANSWER_S) as client,
            client.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=timeout) as response,
        ):
            if response.status_code != 200:
                raise _refusal(url, response)
            if is_web_page(response.headers):
                raise ChatError(web_page_fault("chat server", url, "--url"))
            if response.headers.get("Content-Type", "").startswith("application/json"):
                raise ChatError(
                    other_answer_fault("chat server", url, "JSON instead of a stream of it", "--url")
                )
            yield from _stream_events(_lines(response.iter_raw()))
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, httpx.ConnectError):
            raise _unreachable(url, reason) from error
        raise ChatError(f"no answer from {url}: {reason}") from error


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Yield the lines in the pieces, and store only the current one. Raises ChatError if there are too many
    lines, or if one is too long."""
    line, count = bytearray(), 0  # the beginning of the current line, and the number of lines before it
    for piece in pieces:
        line_end, *next_lines = piece.split(b"\n")
        line += line_end
        for next_line in next_lines:
            yield line.decode("utf-8", "replace").removesuffix("\r")
            line, count = bytearray(next_line), count + 1
        if count > _MAX_LINES or len(line) > _MAX_LINE_BYTES:
            raise ChatError("the answer is longer than an answer of this API can be: correct --url")


def _stream_events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Yield the events in the lines, up to [DONE]. Raises ChatError if they do not have the API's form."""
    for line in lines:
        if line == "data: [DONE]":
            return
        if not line.startswith("data: "):
            continue  # a comment, or the end of an event
        try:
            chunk = read_json(line.removeprefix("data: ").encode(), _MAX_VALUES)
            yield from _chunk_events(chunk)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            raise ChatError("the answer is not of the chat API's form") from error
    raise ChatError("the connection ended before the answer")


def _chunk_events(chunk: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the event and the texts of a chunk. Raises ChatError for an error in the chat's form."""
    if "error" in chunk:
        raise ChatError(str(chunk["error"]["message"]))
    if "rag_r1" in chunk:
        kind = str(chunk["rag_r1"]["event"])
        if kind in ("reasoning", "answer"):  # names of texts in `stream_answer`, not of events
            raise ValueError(f"not an event of the API: {kind}")
        yield kind, chunk["rag_r1"]
    for choice in chunk["choices"]:
        delta = choice["delta"]
        if text := delta.get("reasoning_content"):
            yield "reasoning", str(text)
        if text := delta.get("content"):
            yield "answer", str(text)


def _refusal(url: str, response: httpx.Response) -> ChatError:
    """Return the error for a response whose status is not 200, with the server's reason if it gives one."""
    if response.status_code == 401:
        return ChatError(_token_fault(url))
    raw = bytearray()
    for piece in response.iter_raw():
        raw += piece
        if len(raw) > _MAX_REFUSAL_BYTES:
            break
    try:
        reason = str(read_json(bytes(raw), _MAX_VALUES)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        reason = f"{url} gives no reason: see its log, or correct --url"
        if response.status_code == 404:
            reason = f"there is no chat at {response.url}: correct --url"
    return ChatError(f"HTTP {response.status_code}: {reason}", retry_after(response.headers))
