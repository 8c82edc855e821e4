"""Checks a model's server before a run begins, with a request for its list of models.

The check fails if the server cannot be reached, does not answer in time or does not speak HTTP. It also fails
if the server refuses the key (HTTP 401), or answers with a server error, a redirection, a web page, or JSON
that is not a list of models. Other refusals are accepted, because many servers have no list of models.
`check_replies` then requests a single token, since a server of another kind may refuse the list in the same
way, and since some servers show their list to everybody, but answer only to a key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import httpx

from rag_r1.inference.client import base_address
from rag_r1.io.bounded_http import bounded_http_client
from rag_r1.io.bounded_json import read_json
from rag_r1.io.errors import TooLargeError
from rag_r1.io.retry import is_transient
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.server_address import other_answer_fault, server_fault, web_page_fault
from rag_r1.rollouts.provenance_facts import MAX_ANSWER_VALUES, TIMEOUT_S, get_body, get_json
from rag_r1.runs.errors import RunError

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


def check_endpoint(
    url: str, key_variable: str, server: str, flag: str, model: str | None = None, model_flag: str = "--model"
) -> Mapping[str, Any]:
    """Return the entries of a server's list of models, by name; empty if it has no list. `server` is its
    name in messages, such as "judge", `flag` the option with its address, and `model_flag` the one with the
    model's name.

    Raises RunError if no model server answers at the address, or if its list lacks `model`."""
    address = base_address(url)
    status, body = _send(address, "models", None, key_variable, server, flag)
    models = _models(body, server, address, flag) if status == 200 and body is not None else {}
    if models and model is not None and model not in models:
        names = ", ".join(terminal_text(name, 200) for name in list(models)[:5])
        raise RunError(f"{address} has no model {model!r}, but {names}: correct {model_flag}")
    return models


def check_replies(
    url: str,
    key_variable: str,
    server: str,
    flag: str,
    model: str,
    engine: str = "chat",
    model_flag: str = "--model",
) -> None:
    """Call `check_endpoint`, and request a single token from the engine's API. Raises RunError, except for
    complaints about the request itself, since a run sends other keys. A server that has listed its models
    may load one first, or be overloaded: such faults are left to the run, which retries."""
    models = check_endpoint(url, key_variable, server, flag, model, model_flag)
    address = base_address(url)
    path, prompt = _MIN_REQUESTS[engine]
    payload = {"model": model, "max_tokens": 1, **prompt}
    try:
        status, body = _send(address, path, payload, key_variable, server, flag)
    except _PassingFaultError:
        if models:
            return
        raise
    if status in _REFUSAL_STATUSES:
        text = terminal_text((body or b"").decode("utf-8", "replace"), 200)
        answer = f"HTTP {status} to a request for the model {model!r} at /{path} ({text})"
        raise RunError(f"{address} answers with {answer}: correct {flag} or {model_flag}")


def _send(
    address: str, path: str, payload: Any, key_variable: str, server: str, flag: str
) -> tuple[int, bytes | None]:
    """Send a request and return the status and the body of the answer. The status is 0 after an error that
    does not show a fault of the server. With a `payload`, the request is a POST with that JSON. Raises
    RunError."""
    try:
        with _client(key_variable) as client:
            status, body = get_body(client, f"{address}/{path}", payload)
    except httpx.TimeoutException as error:
        detail = f"no answer within {TIMEOUT_S:g} s"
        raise _PassingFaultError(server_fault(server, address, detail, _START, flag)) from error
    except httpx.LocalProtocolError as error:  # its message may contain the key
        raise RunError(
            f"the {server} at {address} was not asked ({type(error).__name__}): the key in ${key_variable} "
            "may have a line break or another control character; correct it"
        ) from None
    except (httpx.NetworkError, httpx.ProtocolError) as error:
        raise _PassingFaultError(server_fault(server, address, str(error), _START, flag)) from error
    except httpx.DecodingError as error:
        raise RunError(web_page_fault(server, address, flag)) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError):
        return 0, None
    if status == 401:
        key = f"set ${key_variable} to its key, or " if key_variable else ""
        raise RunError(f"{address} refuses the {server}'s key (HTTP 401): {key}correct {flag}")
    if 300 <= status < 400:  # not followed, since that would send the key to another address
        raise RunError(other_answer_fault(server, address, f"HTTP {status}, which leads elsewhere", flag))
    if status >= 500:
        text = terminal_text((body or b"").decode("utf-8", "replace"), 200)
        error_type = _PassingFaultError if is_transient(status) else RunError
        raise error_type(other_answer_fault(server, address, f"HTTP {status}: {text}".rstrip(": "), flag))
    return status, body


def _models(body: bytes, server: str, address: str, flag: str) -> Mapping[str, Any]:
    """Return the models in a body by name; empty for a list that cannot be read. Raises RunError if the body
    is not a list of models."""
    try:
        reply = read_json(body, MAX_ANSWER_VALUES)
    except TooLargeError:
        return {}
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, list) and not (isinstance(reply, dict) and {*_LIST_KEYS} & reply.keys()):
        text = f"{terminal_text(body.decode('utf-8', 'replace'), 100)!r} instead of a list of models"
        raise RunError(other_answer_fault(server, address, text, flag))
    try:
        return {str(entry["id"]): entry for entry in reply["data"]}
    except (TypeError, KeyError, AttributeError):
        return {}


def get_answer(address: str, key_variable: str) -> Any:
    """Return the JSON of the answer to a GET; None if there is no answer, an error, or no JSON."""
    try:
        with _client(key_variable) as client:
            status, reply = get_json(client, address)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError):
        return None
    return reply if status == 200 else None


def _client(key_variable: str) -> httpx.Client:
    """Return an HTTP client that sends the key in the environment variable, if it is set."""
    key = os.environ.get(key_variable, "").strip()
    return bounded_http_client(TIMEOUT_S, {"Authorization": f"Bearer {key}"} if key else {})
