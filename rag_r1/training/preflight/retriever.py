"""Checks the retrieval server: it answers, finds passages, and has the separator of `agentic_input`.

The request is the same as the retrieval client's, with the token from the environment variable
`RETRIEVAL_TOKEN` if it is set. The token must not appear elsewhere, so no message contains the request.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
from omegaconf import DictConfig, OmegaConf

from rag_r1.io.bounded_http import bounded_http_client, is_web_page
from rag_r1.options.declare import read_options
from rag_r1.options.problems import PreflightReport, Problem, error, first_line, is_unset, plain, warning
from rag_r1.options.server_address import FIRST_ANSWER_S
from rag_r1.tools.registry import DEFAULT_TOOL
from rag_r1.tools.retrieval.client import TOKEN_VARIABLE, RetrieverConfig, token_header
from rag_r1.tools.retrieval.query_format import QueryFormatError, choose_mode, read_format, ready_address
from rag_r1.training.preflight.retriever_limits import check_limits, limits_in

_KEY = "rag_r1.retriever.url"
_PROBE = "Which river flows through Paris?"


def check_retriever(config: DictConfig, report: PreflightReport) -> None:
    """The retrieval server answers: `/ready` (or `/health`), then one real search."""
    report.problems += _check(config, report.notes)


def _settings(config: DictConfig) -> RetrieverConfig | None:
    """The valid keys of the search; None if there is no address. check_rag_r1_keys reports wrong keys."""
    options = plain(OmegaConf.select(config, "rag_r1.retriever"))
    if not isinstance(options, dict):
        return None
    has_own_tool = (options.pop("tool", None) or DEFAULT_TOOL) != DEFAULT_TOOL
    if has_own_tool or is_unset(config, _KEY):
        return None
    settings, faults = read_options(RetrieverConfig, options)
    return None if _KEY in {fault.key for fault in faults} else settings


def _check(config: DictConfig, notes: list[str]) -> Iterator[Problem]:
    if (settings := _settings(config)) is None:
        return
    headers = token_header()
    if not all(value.isascii() and value.isprintable() for value in headers.values()):
        text = "has characters that are not allowed in the header of a request"
        yield error(TOKEN_VARIABLE, text, "set it to the token alone, without line breaks")
        return
    base = settings.base
    try:
        with bounded_http_client(min(settings.timeout_s, FIRST_ANSWER_S), headers) as client:
            if (text := _not_ready(client, base)) is not None:
                yield error(_KEY, text, "wait until it has loaded its index, or see its log")
                return
            if settings.agentic_input:
                address, index = ready_address(base)
                notes += _format_notes(settings, address, index, client.get(address))
            payload = settings.wire_format.payload([_PROBE], settings.topk)
            answer = client.post(settings.endpoint, json=payload)
    except QueryFormatError as fault:
        yield error(fault.key, fault.what, fault.remedy)
        return
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as fault:
        text = f"no retrieval server answers at {base} ({type(fault).__name__}: {first_line(fault)})"
        remedy = "start it: rag-r1 index serve --index DIR --port PORT; or correct the address"
        yield error(_KEY, text, remedy)
        return
    if answer.status_code == 401:
        text = "does not accept the token" if headers else "requires a token"
        remedy = f"set the environment variable {TOKEN_VARIABLE} to the token that the server has"
        yield error(_KEY, f"the server at {base} {text} (HTTP 401)", remedy)
        return
    yield from _check_answer(config, settings, answer, notes)


def _not_ready(client: httpx.Client, base: str) -> str | None:
    """What a server says that is up but not ready; None if it is ready, or has no route that tells."""
    for path in ("/ready", "/health"):
        answer = client.get(base + path)
        if answer.status_code == 503:
            return f"{base} is up but not ready ({first_line(answer.text)[:200]})"
        if answer.status_code not in (404, 405):
            break  # Search-R1's server has neither route; the search decides
    return None


def _check_answer(
    config: DictConfig, settings: RetrieverConfig, answer: httpx.Response, notes: list[str]
) -> Iterator[Problem]:
    """The answer to the test search has documents, and then the server's limits suit the settings."""
    base = settings.base
    try:
        if answer.status_code != 200:
            raise ValueError(f"HTTP {answer.status_code}: {first_line(answer.text)[:200]}")
        documents = settings.wire_format.parse_strict(answer.json(), 1, settings.topk)[0]
    except (ValueError, RecursionError) as fault:
        text = f"a test search at {settings.endpoint} failed ({fault})"
        remedy = f"correct {_KEY}, or see the log of the server"
        if is_web_page(answer.headers):
            text = f"{base} answers with a web page, so it is not a retrieval server"
            remedy = f"correct {_KEY}"
        yield error(_KEY, text, remedy)
        return
    notes.append(f"{base}: answered a test search with {len(documents)} documents")
    if len(documents) < settings.topk:
        text = f"a test search gave {len(documents)} documents, but topk={settings.topk}"
        yield warning("rag_r1.retriever.topk", text, "check that the index is of the right corpus")
    try:
        with bounded_http_client(settings.timeout_s, token_header()) as client:
            limits = limits_in(client.get(base + "/health").json())
    except (httpx.HTTPError, OSError, ValueError, RecursionError):  # another maker's server
        limits = None
    if limits is None:
        notes.append(f"{base}: tells no limits; time-out and connections were not compared")
    else:
        yield from check_limits(config, settings, limits)


def _format_notes(
    settings: RetrieverConfig, address: str, index: str | None, answer: httpx.Response
) -> list[str]:
    """How the server wants its queries, from its `/ready`. Raises QueryFormatError."""
    try:
        form = read_format(address, index, answer.status_code, answer.content)
        mode = choose_mode(form, settings.mode)
    except QueryFormatError as fault:
        if fault.stops(settings.mode):
            raise
        return []
    length = "of any length" if form.max_length is None else f"of up to {form.max_length} tokens"
    return [f"{settings.base}: separator {form.separator!r}, mode {mode}, queries {length}"]
