"""Asks whether a model's server is there, before a run begins.

Only a refused connection and a web page are errors here: many servers have no list of models, and what else
may be wrong is known at the first episode.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import httpx

from rag_r1.inference.client import base_address
from rag_r1.io.bounded_http import bounded_http_client
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.server_address import server_fault, web_page_fault
from rag_r1.rollouts.provenance_facts import TIMEOUT_S, get_json
from rag_r1.runs.errors import RunError


def check_endpoint(
    url: str, key_variable: str, what: str, flag: str, model: str | None = None
) -> Mapping[str, Any]:
    """The models that a server lists, by name, each with what is said of it; {} if it lists none. Raises
    RunError, which names what it is and its flag, if no model server answers at an address, or if its list
    lacks the `model`."""
    answer = get_answer(f"{base_address(url)}/models", key_variable, what, flag)
    try:
        models = {str(entry["id"]): entry for entry in answer["data"]}
    except (TypeError, KeyError, AttributeError):
        return {}
    if models and model is not None and model not in models:
        names = ", ".join(terminal_text(name, 200) for name in list(models)[:5])
        raise RunError(f"{base_address(url)} has no model {model!r}, but {names}: correct the model's name")
    return models


def get_answer(address: str, key_variable: str, what: str = "model server", flag: str = "--base-url") -> Any:
    """What a server answers to a GET; None if it is no JSON, or an error. Raises RunError, with the name of
    the server and its flag, if nobody answers, or if a web page does."""
    where = address.removesuffix("/models")
    key = os.environ.get(key_variable, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with bounded_http_client(TIMEOUT_S, headers) as client:
            status, answer = get_json(client, address)
    except httpx.ConnectError as error:
        start = "vllm serve MODEL --port {port}"
        raise RunError(server_fault(what, where, str(error), start, flag)) from error
    except httpx.DecodingError as error:
        raise RunError(web_page_fault(what, where, flag)) from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError):
        return None
    return answer if status == 200 else None
