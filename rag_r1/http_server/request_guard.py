"""Checks requests (Host, Origin, content type, token), and adds security headers to every response.

Any page that is open in the user's browser can send requests to a server on 127.0.0.1. Three checks keep such
pages out:

- `Host` must be a name of this server, since a page's own name may be made to resolve to this machine (DNS
  rebinding). Numeric addresses are always accepted, since they are never the name of a page.
- A request sent by a page of another origin is refused, unless its method is GET, HEAD or OPTIONS.
- A request of any other method must declare its body as JSON, which a form cannot do.

The retrieval server, which shares no code with this package, follows similar rules
(retrieval_server/server/http/origin_check.py). The Content-Security-Policy of each response lets a page load
its own script and style only: no inline script, no other origin, and no frame around it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rag_r1.http_server.errors import ErrorReply, error_response
from rag_r1.http_server.request_body import limit_body
from rag_r1.http_server.stopping import call_until_stopped

#: The security headers of every response.
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


class RequestGuard:
    """An ASGI layer around an app that refuses requests and adds the security headers.

    It also limits the bodies of requests (request_body.py), and answers those that a stop cancels
    (stopping.py). It does not check WebSockets, which the servers do not accept (idle_timeout.py).

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
        on_refusal: Callable[[str], None] = lambda code: None,
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
            headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None
            return await error_response(*refusal, headers)(scope, receive, send_secured)
        await call_until_stopped(self._app, scope, limit_body(receive), send_secured)

    def _refusal(self, scope: Scope) -> ErrorReply | None:
        """Return the reason for refusing a request; None if it is accepted."""
        hosts = _header_values(scope, b"host")
        if len(hosts) != 1 or not self._serves(hosts[0]):
            reason = "the Host header is not a name of this server; if it should be: --allowed-host NAME"
            return ErrorReply(421, "unknown_host", reason)
        if scope["method"] not in _SAFE_METHODS:
            if self._is_foreign(scope, hosts[0]):
                return ErrorReply(403, "cross_origin", "sent by a web page of another origin")
            types = _header_values(scope, b"content-type")
            if len(types) != 1 or not _JSON.fullmatch(types[0].partition(";")[0].strip()):
                reason = "send JSON, with 'Content-Type: application/json'"
                return ErrorReply(415, "unsupported_media_type", reason)
        if self._token and scope["path"] not in self._open_paths and not has_bearer_token(scope, self._token):
            reason = "send the server's token: 'Authorization: Bearer TOKEN'"
            return ErrorReply(401, "unauthorized", reason)
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
