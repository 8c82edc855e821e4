"""Refuses requests of foreign web pages by their Host, Origin and content type.

A web page can try to send commands to the server in three ways. Each is refused before the body is read:

- By DNS rebinding, a name of the page's site is made to resolve to this machine. So `Host` must be a name of
  this server (421). Numeric addresses are always accepted, since the name of a site is never one.
- A page can send a request to another site. So every request except GET, HEAD and OPTIONS must come from the
  same origin or from no page at all (403). Clients other than browsers send neither `Origin` nor
  `Sec-Fetch-Site`.
- A browser sends a form to another site without asking that site first. So a POST must be JSON by its content
  type (415).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval_server.engine.metrics import Metrics
from retrieval_server.errors import RequestError
from retrieval_server.server.error_responses import error_response

ANY_HOST = "*"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]*)?")
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json")
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class HostNames:
    """The names under which clients may address the server: its `names`, and those `allowed` by the operator.

    An allowed name (`--allowed-host`) such as `.example.org` includes all subdomains; `*` allows every name.
    """

    def __init__(self, names: Iterable[str] = (), allowed: Iterable[str] = ()):
        self._allowed = frozenset(name.lower().rstrip(".") for name in allowed)
        self._names = frozenset(name.lower().rstrip(".") for name in names) | {"localhost"}

    def serves(self, host: str) -> bool:
        """Return whether a `Host` header in lower case, with or without a port, names this server."""
        name = _name_of(host)
        if name is None:
            return False
        is_own = _is_address(name) or name in self._names
        return is_own or ANY_HOST in self._allowed or self.is_explicitly_allowed(name)

    def is_explicitly_allowed(self, name: str) -> bool:
        """Return whether the operator has allowed this name or its domain; `*` does not count."""
        parents = {name[dot:] for dot, letter in enumerate(name) if letter == "."}
        return not self._allowed.isdisjoint({name, f".{name}"} | parents)


def server_names(host: str) -> set[str]:
    """Return the full and the short name of this machine, and the address on which the server listens."""
    name = socket.gethostname()
    return {host, name, name.partition(".")[0]}


class OriginMiddleware:
    """Refuses requests of pages of other sites. If `hosts` is None, any `Host` is accepted."""

    def __init__(self, app: ASGIApp, hosts: HostNames | None, metrics: Metrics):
        self._app, self._hosts, self._metrics = app, hosts, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            self._metrics.rejections.labels("", refusal.error).inc()
            answer = error_response(refusal.status, refusal.error, refusal.reason)
            return await answer(scope, receive, send)
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> RequestError | None:
        """Return the error with which a request is refused; None if it is accepted."""
        hosts = _values(scope, b"host")
        # HTTP/1.0 has no Host header. Some load balancers check /health with it, but no browser uses it.
        is_named = len(hosts) == 1 or (not hosts and scope.get("http_version") == "1.0")
        if self._hosts is not None and not (is_named and all(map(self._hosts.serves, hosts))):
            name = repr(hosts[0][:100]) if len(hosts) == 1 else f"{len(hosts)} Host headers"
            reason = f"{name} is not a name of this server; if it should be: --allowed-host NAME"
            return RequestError(421, "unknown_host", reason)
        if scope["method"] in _READING_METHODS or not self._is_foreign(scope, hosts):
            return None
        reason = "sent by a web page of another site; name its host with --allowed-host if that is meant"
        return RequestError(403, "cross_origin", reason)

    def _is_foreign(self, scope: Scope, hosts: list[str]) -> bool:
        """Return whether a request comes from a page of another site."""
        if origins := _values(scope, b"origin"):
            return not all(self._is_own_origin(origin, hosts) for origin in origins)
        return any(site not in ("same-origin", "none") for site in _values(scope, b"sec-fetch-site"))

    def _is_own_origin(self, origin: str, hosts: list[str]) -> bool:
        """Return whether an `Origin` is the `Host` of the request or a host of `--allowed-host`."""
        try:
            netloc = urlsplit(origin).netloc
        except ValueError:
            return False
        name = _name_of(netloc)
        # A proxy may have replaced the browser's Host.
        is_allowed = name is not None and self._hosts is not None and self._hosts.is_explicitly_allowed(name)
        return bool(netloc) and (is_allowed or netloc in hosts)


class JsonMiddleware:
    """Refuses a POST whose content type is not JSON."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            types = _values(scope, b"content-type")
            if len(types) != 1 or not _JSON.fullmatch(types[0].partition(";")[0].strip()):
                self._metrics.rejections.labels("", "unsupported_media_type").inc()
                reason = "send the body as JSON, with the header 'Content-Type: application/json'"
                return await error_response(415, "unsupported_media_type", reason)(scope, receive, send)
        await self._app(scope, receive, send)


def _values(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header in lower case."""
    return [value.decode("latin-1").strip().lower() for key, value in scope["headers"] if key == name]


def _name_of(host: str) -> str | None:
    """Return the name or address in a `Host` header, without the port; None if it is malformed."""
    match = _HOST.fullmatch(host)
    return match[1].strip("[]").rstrip(".") if match else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
