"""Checks requests (Host, Origin, token, size), and adds security headers to every response.

Any page that is open in the user's browser can send requests to a server on 127.0.0.1. Three checks keep such
pages out:

- `Host` must be a name of this server, since a page's own name may be made to resolve to this machine (DNS
  rebinding). Numeric addresses are always accepted, since they are never the name of a page.
- A request sent by a page of another origin is refused, unless its method is GET, HEAD or OPTIONS.
- A request of any other method must declare its body as JSON, which a form cannot do.

The retrieval server, which shares no code with this package, follows similar rules
(retrieval_server/server/http/origin_check.py). The Content-Security-Policy of each response lets a page load
its own script and style only: no inline script, no other origin, and no frame around it. Every error is JSON
in OpenAI's format.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Rejection(NamedTuple):
    """The error with which a request is refused."""

    status: int
    #: The error's code in OpenAI's format.
    code: str
    #: The sentence for the client.
    reason: str


#: Most bytes of a body. A conversation of 200 long answers is smaller.
MAX_BODY_BYTES = 2 << 20
#: Seconds within which a body must arrive.
BODY_TIMEOUT_S = 30.0
#: Seconds after which the client of a stopping server may retry, since another server may then run.
RETRY_S = 5
#: The error of a request that is ended because the server stops.
STOPPING = Rejection(503, "stopping", f"the server stops, and the chat with it: ask again in {RETRY_S} s")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]*)?")
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def error_body(code: str, message: str) -> dict[str, Any]:
    """Return the JSON of an error in OpenAI's format."""
    return {"error": {"message": message, "type": code, "code": code, "param": None}}


class RequestGuard:
    """An ASGI layer around an app that refuses requests and adds the security headers.

    - `names`: the server's own names, besides localhost and numeric addresses
    - `allowed`: names under which a proxy makes the server available
    - `token`: the token that is required for all paths except the `open_paths`, such as a page without data
    - `on_refusal`: called with the code of each refusal
    """

    def __init__(
        self,
        app: ASGIApp,
        names: Iterable[str],
        allowed: Iterable[str],
        token: str | None,
        on_refusal: Callable[[str], None] = lambda reason: None,
        open_paths: Collection[str] = (),
    ):
        self._app, self._token, self._on_refusal = app, token, on_refusal
        self._open_paths = frozenset(open_paths)
        self._allowed = {name.lower().rstrip(".") for name in allowed}
        self._hosts = {name.lower().rstrip(".") for name in names} | {"localhost"} | self._allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_RAW_HEADERS]
            await send(message)

        if refusal := self._refusal(scope):
            self._on_refusal(refusal.code)
            body = error_body(refusal.code, refusal.reason)
            headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None
            return await JSONResponse(body, refusal.status, headers)(scope, receive, send_secured)
        await call_until_stopped(self._app, scope, limit_body(receive), send_secured)

    def _refusal(self, scope: Scope) -> Rejection | None:
        """Return the reason for refusing a request; None if it is accepted."""
        hosts = _header_values(scope, b"host")
        if len(hosts) != 1 or not self._serves(hosts[0]):
            reason = "the Host header is not a name of this server; if it should be: --allowed-host NAME"
            return Rejection(421, "unknown_host", reason)
        if scope["method"] not in _SAFE_METHODS:
            if self._is_foreign(scope, hosts[0]):
                return Rejection(403, "cross_origin", "sent by a web page of another origin")
            types = _header_values(scope, b"content-type")
            if len(types) != 1 or not _JSON.fullmatch(types[0].partition(";")[0].strip()):
                reason = "send JSON, with 'Content-Type: application/json'"
                return Rejection(415, "unsupported_media_type", reason)
        if self._token and scope["path"] not in self._open_paths and not has_bearer_token(scope, self._token):
            reason = "send the server's token: 'Authorization: Bearer TOKEN'"
            return Rejection(401, "unauthorized", reason)
        return None

    def _serves(self, host: str) -> bool:
        """Return whether a Host header is a name of this server, or a numeric address."""
        name = _name_of(host)
        return name is not None and (name in self._hosts or _is_address(name))

    def _is_foreign(self, scope: Scope, host: str) -> bool:
        """Return whether a page of another origin sent the request. Clients other than browsers send neither
        header. A proxy may have replaced the browser's Host header, so the allowed names also count as
        origins of this server."""
        if origins := _header_values(scope, b"origin"):
            return not all(map(partial(self._is_same_origin, host), origins))
        return any(site not in ("same-origin", "none") for site in _header_values(scope, b"sec-fetch-site"))

    def _is_same_origin(self, host: str, origin: str) -> bool:
        try:
            origin_host = urlsplit(origin).netloc
        except ValueError:
            return False
        return bool(origin_host) and (origin_host == host or _name_of(origin_host) in self._allowed)


def has_bearer_token(scope: Scope, token: str) -> bool:
    """Return whether a request contains this token in its only Authorization header."""
    headers = [value for key, value in scope["headers"] if key == b"authorization"]
    scheme, _, sent = (headers[0] if len(headers) == 1 else b"").partition(b" ")
    # Compared in constant time, so that the duration does not reveal how much of a guess is right.
    return scheme.lower() == b"bearer" and hmac.compare_digest(sent.strip(), token.encode())


class WholeBodyMiddleware:
    """An ASGI layer that passes requests on to an app of another package only when their whole body has
    arrived within the limits of this module. `check` is called with the body, and may raise RequestError. A
    client that goes away before gets no response."""

    def __init__(self, app: ASGIApp, check: Callable[[bytes], None] = lambda body: None):
        self._app, self._check = app, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        await call_until_stopped(self._forward, scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app with the whole body, or respond with the error of `check` or of the limits."""
        receive_part = limit_body(receive)
        messages: list[Message] = []
        try:
            while not messages or messages[-1].get("more_body"):
                messages.append(await receive_part())
            if messages[-1]["type"] == "http.disconnect":
                return
            self._check(b"".join(message.get("body", b"") for message in messages))
        except RequestError as error:
            body = error_body(error.code, error.detail)
            return await JSONResponse(body, error.status_code, {"Connection": "close"})(scope, receive, send)
        messages.reverse()

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)


async def call_until_stopped(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call the app, and respond with STOPPING if the request is cancelled before its response has begun. At
    the end of a stop the server cancels all remaining requests, such as one whose body has not arrived."""
    has_begun = False

    async def send_and_note(message: Message) -> None:
        nonlocal has_begun
        has_begun = has_begun or message["type"] == "http.response.start"
        await send(message)

    try:
        await app(scope, receive, send_and_note)
    except asyncio.CancelledError:
        if not has_begun:
            # A connection accepted when the stop began would otherwise stay open for another request.
            headers = {"Retry-After": str(RETRY_S), "Connection": "close"}
            body = error_body(STOPPING.code, STOPPING.reason)
            await JSONResponse(body, STOPPING.status, headers)(scope, receive, send)


def limit_body(receive: Receive) -> Receive:
    """Return a `receive` that raises RequestError for a body that is too large or too slow, before it fills
    the memory."""
    deadline = asyncio.get_running_loop().time() + BODY_TIMEOUT_S
    size, is_complete = 0, False

    async def receive_part() -> Message:
        nonlocal size, is_complete
        if is_complete:  # only the disconnection follows, which may happen at any time
            return await receive()
        remaining = deadline - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(receive(), max(remaining, 0.001))
        except TimeoutError:
            raise RequestError(408, "timeout", f"no body arrived within {BODY_TIMEOUT_S:g} s") from None
        size += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        if size > MAX_BODY_BYTES:
            raise RequestError(413, "too_large", f"the body is larger than {MAX_BODY_BYTES} bytes")
        return message

    return receive_part


class RequestError(HTTPException):
    """A request is answered with an error. `code` is its code in OpenAI's format."""

    def __init__(self, status: int, code: str, reason: str, headers: dict[str, str] | None = None):
        super().__init__(status, reason, headers)
        self.code = code


def _header_values(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header in lower case."""
    return [value.decode("latin-1").strip().lower() for key, value in scope["headers"] if key == name]


def _name_of(host: str) -> str | None:
    """Return the name or address in a Host header without its port; None if the header contains neither."""
    match = _HOST.fullmatch(host)
    return match[1].strip("[]").rstrip(".") if match else None


def _is_address(name: str) -> bool:
    """Return whether a name is a numeric address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
