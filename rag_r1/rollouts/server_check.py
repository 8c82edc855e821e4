"""Checks a model's server before a run begins, with a request for its list of models.

The check fails if the server cannot be reached, does not answer in time or does not speak HTTP. It also fails
if the server refuses the key (HTTP 401), or answers with a server error, a redirection, a web page, or JSON
that is not a list of models. Other refusals are accepted, because many servers have no list of models.
`check_replies` then requests a single token, since a server of another kind may refuse the list in the same
way, and since some servers show their list to everybody, but answer only to a key.

`get_answer` checks nothing: it reads what else a server says about itself, such as its version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from rag_r1.inference.client import base_address, key_of
from rag_r1.io.bounded_http import SHORT_ANSWER_VALUES, bounded_http_client, get_body, get_json
from rag_r1.io.bounded_json import read_json
from rag_r1.io.errors import TooLargeError
from rag_r1.io.retry import is_transient
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.server_address import other_answer_fault, server_fault, web_page_fault
from rag_r1.rollouts.provenance_facts import TIMEOUT_S
from rag_r1.runs.errors import RunError

#: The command that starts a model's server, for messages.
_START = "vllm serve MODEL --port {port}"
#: Keys that may hold the list of models: OpenAI's `data`, and `models` on some servers.
_LIST_KEYS = ("data", "models")
#: The path and the prompt of the smallest request to each API.
_MIN_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    "completions": ("completions", {"prompt": [1]}),  # token ids, as in a run
}
#: Statuses that mean that every request to this address, with this key or for this model will be refused.
_REFUSAL_STATUSES = {402, 403, 404, 405}


class _PassingFaultError(RunError):
    """A fault that a working server may have for a while: it is slow or overloaded."""


@dataclass(frozen=True)
class ModelServer:
    """A model's server as the options of a command name it."""

    url: str
    #: Environment variable with the key.
    key_variable: str
    #: Name of the model; None if any will do.
    model: str | None = None
    #: What messages call the server.
    name: str = "model server"
    #: The option with the address, and the one with the name of the model.
    flag: str = "--base-url"
    model_flag: str = "--model"

    @property
    def address(self) -> str:
        """The address without a path of the API."""
        return base_address(self.url)


def check_endpoint(server: ModelServer) -> Mapping[str, Any]:
    """Return the entries of a server's list of models, by name; empty if it has no list. Raises RunError if
    no model server answers at the address, or if its list lacks the model."""
    status, body = _send(server, "models", None)
    models = _models(body, server) if status == 200 and body is not None else {}
    if models and server.model is not None and server.model not in models:
        names = ", ".join(terminal_text(name, 200) for name in list(models)[:5])
        fault = f"{server.address} has no model {server.model!r}, but {names}"
        raise RunError(f"{fault}: correct {server.model_flag}")
    return models


def check_replies(server: ModelServer, engine: str = "chat") -> None:
    """Call `check_endpoint`, and request a single token from the engine's API. Raises RunError, except for
    complaints about the request itself, since a run sends other keys. A server that has listed its models
    may load one first, or be overloaded: such faults are left to the run, which retries."""
    models = check_endpoint(server)
    path, prompt = _MIN_REQUESTS[engine]
    payload = {"model": server.model, "max_tokens": 1, **prompt}
    try:
        status, body = _send(server, path, payload)
    except _PassingFaultError:
        if models:
            return
        raise
    if status in _REFUSAL_STATUSES:
        text = terminal_text((body or b"").decode("utf-8", "replace"), 200)
        answer = f"HTTP {status} to a request for the model {server.model!r} at /{path} ({text})"
        remedy = f"correct {server.flag} or {server.model_flag}"
        raise RunError(f"{server.address} answers with {answer}: {remedy}")


def _send(server: ModelServer, path: str, payload: Any) -> tuple[int, bytes | None]:
    """Send a request and return the status and the body of the answer. The status is 0 after an error that
    does not show a fault of the server. With a `payload`, the request is a POST with that JSON. Raises
    RunError if the server fails, refuses the key or is of another kind, and for a value that cannot be a
    key."""
    name, address, flag = server.name, server.address, server.flag
    try:
        with _client(server.key_variable) as client:
            status, body = get_body(client, f"{address}/{path}", payload)
    except httpx.TimeoutException as error:
        detail = f"no answer within {TIMEOUT_S:g} s"
        raise _PassingFaultError(server_fault(name, address, detail, _START, flag)) from error
    except (httpx.NetworkError, httpx.ProtocolError) as error:
        raise _PassingFaultError(server_fault(name, address, str(error), _START, flag)) from error
    except httpx.DecodingError as error:
        raise RunError(web_page_fault(name, address, flag)) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError):
        return 0, None
    if status == 401:
        key = f"set ${server.key_variable} to its key, or " if server.key_variable else ""
        raise RunError(f"{address} refuses the {name}'s key (HTTP 401): {key}correct {flag}")
    if 300 <= status < 400:  # not followed, since that would send the key to another address
        raise RunError(other_answer_fault(name, address, f"HTTP {status}, which leads elsewhere", flag))
    if status >= 500:
        text = terminal_text((body or b"").decode("utf-8", "replace"), 200)
        error_type = _PassingFaultError if is_transient(status) else RunError
        raise error_type(other_answer_fault(name, address, f"HTTP {status}: {text}".rstrip(": "), flag))
    return status, body


def _models(body: bytes, server: ModelServer) -> Mapping[str, Any]:
    """Return the models in a body by name; empty for a list that cannot be read. Raises RunError if the body
    is not a list of models."""
    try:
        reply = read_json(body, SHORT_ANSWER_VALUES)
    except TooLargeError:
        return {}
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, list) and not (isinstance(reply, dict) and {*_LIST_KEYS} & reply.keys()):
        text = f"{terminal_text(body.decode('utf-8', 'replace'), 100)!r} instead of a list of models"
        raise RunError(other_answer_fault(server.name, server.address, text, server.flag))
    try:
        return {str(entry["id"]): entry for entry in reply["data"]}
    except (TypeError, KeyError, AttributeError):
        return {}


def get_answer(address: str, key_variable: str) -> Any:
    """Return the JSON of the answer to a GET at `address`, to which the key in the environment variable
    `key_variable` is sent if it is set; None if there is no answer, an error or no JSON, or if the value of
    the variable cannot be a key."""
    try:
        with _client(key_variable) as client:
            status, reply = get_json(client, address)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError, RunError):
        return None
    return reply if status == 200 else None


def _client(key_variable: str) -> httpx.Client:
    """Return an HTTP client that sends the key in the environment variable, if it is set. Raises RunError for
    a value that cannot be a key."""
    key = key_of(key_variable)
    return bounded_http_client(TIMEOUT_S, {"Authorization": f"Bearer {key}"} if key else {})
