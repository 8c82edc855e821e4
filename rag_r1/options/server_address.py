"""Validates addresses of servers, and words the messages about a server that does not answer.

An address is logged, stored with a run and shown in messages. So it must not hold a password or a key: one
with a user, a query or a fragment is refused, wherever it is given, and no message repeats it.
Keys come from environment variables.
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator

from rag_r1.options.declare import Constraint, Text

#: Most seconds for the first request of a command to a server, also if later ones may take longer, so that
#: one that hangs is named before any work. The first search in a large index takes some of them.
FIRST_ANSWER_S = 12.0

#: In the error of a search: what was answered, if it is HTML.
WEB_PAGE = "a web page instead of JSON"
#: In the error of a search: what was answered, if it is JSON but not the result of a search.
OTHER_JSON = "JSON of another shape"

#: What an address must be, in the words of error messages.
AN_ADDRESS = (
    "an http(s) address such as http://127.0.0.1:8000, without user, password, query and fragment (keys and "
    "tokens come from environment variables)"
)

#: A user with a password behind a slash, as in one address within another.
_PASSWORD_IN_PATH = re.compile(r":[^/]*@")


def server_address(url: str) -> str:
    """Returns the address itself. Raises ValueError, whose message does not repeat it, unless it is
    AN_ADDRESS."""
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
    """Returns the address of an OpenAI-compatible server without the route with which it may end, and with
    `/v1` if it has no path. Raises ValueError as `server_address`."""
    parts = urlsplit(server_address(url))
    path = parts.path.rstrip("/")
    for route in ("/chat/completions", "/completions"):
        path = path.removesuffix(route)
    return urlunsplit((parts.scheme, parts.netloc, path or "/v1", "", ""))


def is_server_address(url: object) -> bool:
    """Returns whether `server_address` accepts it."""
    try:
        return isinstance(url, str) and bool(server_address(url))
    except ValueError:
        return False


def is_refused(error: str) -> bool:
    """Returns whether the text of an error says that no server listens at the address."""
    return any(words in error for words in ("Connect call failed", "Connection refused", "ConnectorError"))


def is_other_server(error: str) -> bool:
    """Returns whether the text of a search's error says that something else than a retrieval server has
    answered."""
    return any(words in error for words in (WEB_PAGE, OTHER_JSON, "JSONDecodeError"))


def server_fault(server: str, url: str, error: str, start: str, flag: str) -> str:
    """Returns the sentence for a server that does not answer: address, cause, the command that starts one,
    and the flag that names it. `{port}` in `start` is that of the address."""
    cause = "connection refused" if is_refused(error) else error
    try:
        port = urlsplit(url).port or 80
    except ValueError:
        port = 80
    command = start.format(port=port)
    return f"no {server} answers at {url} ({cause}): start one with `{command}`, or correct {flag}"


def web_page_fault(server: str, url: str, flag: str) -> str:
    """Returns the sentence for an address at which something answers with a web page, as `server_fault`."""
    return f"{url} answers with a web page, so it is not a {server}: correct {flag}"


def other_answer_fault(server: str, url: str, answer: str, flag: str) -> str:
    """Returns the sentence for an address at which something answers with `answer`, which the server would
    not, as `server_fault`."""
    return f"{url} answers with {answer}, as no working {server} does: see its log, or correct {flag}"


def search_fault(url: str, error: str, flag: str) -> str:
    """Returns the sentence for a search that fails at a retrieval server, as `server_fault`."""
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
