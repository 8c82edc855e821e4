"""Validates addresses of servers, and writes messages about servers that do not answer.

Addresses are logged, stored with runs and shown in messages, so they must not contain a password or key. An
address with a user, query or fragment is refused wherever it is given, and no message repeats it. Keys come
from environment variables.
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator

from rag_r1.options.types import Constraint, Text

#: Most seconds for the first request of a command to a server, even if later requests may take longer, so
#: that a hanging server is reported before any work. The first search in a large index takes several seconds.
FIRST_ANSWER_S = 12.0

#: Part of a search error about a response in HTML.
WEB_PAGE = "a web page instead of JSON"
#: Part of a search error about a JSON response that is not a search result.
OTHER_JSON = "JSON of another shape"

#: The requirement for an address, in the words of error messages.
AN_ADDRESS = (
    "an http(s) address such as http://127.0.0.1:8000, without user, password, query and fragment (keys and "
    "tokens come from environment variables)"
)

#: A user with a password after a slash, as in an address that contains another one.
_PASSWORD_IN_PATH = re.compile(r":[^/]*@")


def server_address(url: str) -> str:
    """Validate an address, and return it unchanged. Raises ValueError, whose message does not repeat the
    address, unless it is AN_ADDRESS."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises ValueError if it is not a number)
    except ValueError:
        raise ValueError(f"must be {AN_ADDRESS}") from None
    is_address = (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and not set(parts.netloc) & {"@", "%", "\\"}
        and not set(url) & {"?", "#"}
        and not _PASSWORD_IN_PATH.search(parts.path)
        and url.isprintable()  # urlsplit drops line breaks
        and " " not in url
    )
    if not is_address:
        raise ValueError(f"must be {AN_ADDRESS}")
    return url


def model_server_base(url: str) -> str:
    """Return the address of an OpenAI-compatible server without the route at its end, and with `/v1` if it
    has no path. Raises ValueError like `server_address`."""
    parts = urlsplit(server_address(url))
    path = parts.path.rstrip("/")
    for route in ("/chat/completions", "/completions"):
        path = path.removesuffix(route)
    return urlunsplit((parts.scheme, parts.netloc, path or "/v1", "", ""))


def is_server_address(url: object) -> bool:
    """Return whether `server_address` accepts a value."""
    try:
        return isinstance(url, str) and bool(server_address(url))
    except ValueError:
        return False


def is_refused(error: str) -> bool:
    """Return whether an error message says that no server listens at the address."""
    return any(text in error for text in ("Connect call failed", "Connection refused", "ConnectorError"))


def is_other_server(error: str) -> bool:
    """Return whether the error message of a search says that something other than a retrieval server
    answered."""
    return any(text in error for text in (WEB_PAGE, OTHER_JSON, "JSONDecodeError"))


def server_fault(server: str, url: str, error: str, start: str, flag: str) -> str:
    """Return the sentence about a server that does not answer: the address, the cause, the command that
    starts a server, and the flag for another address. `{port}` in the command `start` is replaced by the port
    of the address."""
    cause = "connection refused" if is_refused(error) else error
    if url.startswith("https://") and "WRONG_VERSION_NUMBER" in error:  # the answer to TLS was none of it
        return f"{url} answers without TLS: correct {flag} to http://{url.removeprefix('https://')}"
    try:
        port = urlsplit(url).port or 80
    except ValueError:
        port = 80
    command = start.format(port=port)
    return f"no {server} answers at {url} ({cause}): start one with `{command}`, or correct {flag}"


def web_page_fault(server: str, url: str, flag: str) -> str:
    """Return the sentence about an address that answers with a web page. The arguments are those of
    `server_fault`."""
    return f"{url} answers with a web page, so it is not a {server}: correct {flag}"


def other_answer_fault(server: str, url: str, answer: str, flag: str) -> str:
    """Return the sentence about an address that gives an `answer` which no working server of this kind
    gives. The other arguments are those of `server_fault`."""
    return f"{url} answers with {answer}, as no working {server} does: see its log, or correct {flag}"


def search_fault(url: str, error: str, flag: str) -> str:
    """Return the sentence about a search that fails at a retrieval server. The arguments are those of
    `server_fault`."""
    if not is_refused(error):
        reason = error
        if OTHER_JSON in error:
            reason = f"it answers with {error.removeprefix('ValueError: ')}"
        elif is_other_server(error):
            reason = "it answers with a web page" if WEB_PAGE in error else "it does not answer with JSON"
        remedy = "set RETRIEVAL_TOKEN, or correct" if "HTTP 401" in error else "correct the server, or"
        return f"the search at {url} does not work ({reason}): {remedy} {flag}"
    return server_fault("retrieval server", url, error, "rag-r1 index serve --index DIR --port {port}", flag)


#: The type of an option, or of an argument of a command, that is an address.
Address = Annotated[Text, AfterValidator(server_address), Constraint(AN_ADDRESS, is_shown=False)]
