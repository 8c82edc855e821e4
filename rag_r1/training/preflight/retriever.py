"""Checks that the retrieval server answers, finds passages, and supports the client's settings.

The requests are the same as those of the retrieval client, with the token from the environment variable
`RETRIEVAL_TOKEN` if it is set. The token must not be shown, so no message contains a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
from omegaconf import DictConfig, OmegaConf

from rag_r1.io.bounded_http import bounded_http_client, is_web_page
from rag_r1.options.from_config import read_options
from rag_r1.options.problems import PreflightReport, error, first_line, plain, warning
from rag_r1.options.server_address import FIRST_ANSWER_S
from rag_r1.tools.registry import DEFAULT_TOOL
from rag_r1.tools.retrieval.options import TOKEN_VARIABLE, RetrieverConfig, token_header
from rag_r1.tools.retrieval.query_format import QueryFormatError, choose_mode, read_format, ready_address
from rag_r1.training.preflight.retriever_limits import check_limits, limits_in

#: The key with the address. Problems of the server itself are reported under it.
KEY = "rag_r1.retriever.url"
_PROBE = "Which river flows through Paris?"


class _UnusableServer(Exception):
    """Raised if the server cannot be used; `problem` says why."""

    def __init__(self, where: str, what: str, remedy: str):
        super().__init__(what)
        self.problem = error(where, what, remedy)


def check_retriever(config: DictConfig, report: PreflightReport) -> None:
    """Check the retrieval server: that it is ready (`/ready`, or `/health`), that it answers one real
    search, and that the client stays within its limits. Adds problems and notes to the report. The server of
    the validation is checked in the same way, if its settings are others."""
    training = _options(config, "rag_r1.retriever")
    validation = {**training, **_options(config, "rag_r1.validation_retriever")}
    _check_server(config, training, report)
    if validation == training:
        return
    other = PreflightReport()
    _check_server(config, validation, other)
    told = {problem.what for problem in report.problems}
    report.notes += [note for note in other.notes if note not in report.notes]
    report.problems += [
        replace(problem, where=problem.where.replace("rag_r1.retriever", "rag_r1.validation_retriever"))
        for problem in other.problems
        if problem.what not in told
    ]


def _options(config: DictConfig, section: str) -> dict[str, Any]:
    """Return the keys of a section; {} if it is no block."""
    options = plain(OmegaConf.select(config, section))
    return options if isinstance(options, dict) else {}


def _check_server(config: DictConfig, options: Mapping[str, Any], report: PreflightReport) -> None:
    """Check the server of these options of a search tool. Problems are told with keys of the training."""
    if (settings := _settings(options)) is None:
        return
    try:
        headers = _headers()
        n_documents = _test_search(settings, headers, report.notes)
    except _UnusableServer as fault:
        report.problems.append(fault.problem)
        return
    report.notes.append(f"{settings.base}: answered a test search with {n_documents} documents")
    if n_documents < settings.topk:
        text = f"a test search gave {n_documents} documents, but topk={settings.topk}"
        remedy = "check that the index is of the right corpus"
        report.problems.append(warning("rag_r1.retriever.topk", text, remedy))
    limits = _limits(settings, headers)
    if limits is None:
        text = "does not say its limits, so time-out and connections were not compared"
        report.notes.append(f"{settings.base}: {text}")
    else:
        report.problems += check_limits(config, settings, limits)


def _settings(options: Mapping[str, Any]) -> RetrieverConfig | None:
    """Return the client's settings; None if there is no server to try. Wrong keys are ignored here, because
    `check_rag_r1_keys` reports them."""
    uses_other_tool = (options.get("tool") or DEFAULT_TOOL) != DEFAULT_TOOL
    if uses_other_tool or options.get("url") in (None, "???"):
        return None
    known = {key: value for key, value in options.items() if key != "tool"}
    settings, faults = read_options(RetrieverConfig, known)
    return None if KEY in {fault.key for fault in faults} else settings


def _headers() -> dict[str, str]:
    """Return the header with the token, if there is one. Raises _UnusableServer for a token that cannot be
    sent."""
    try:
        return token_header()
    except ValueError:
        text = "has characters that are not allowed in the header of a request"
        remedy = "set it to the token alone, without line breaks"
        raise _UnusableServer(TOKEN_VARIABLE, text, remedy) from None


def _test_search(settings: RetrieverConfig, headers: dict[str, str], notes: list[str]) -> int:
    """Search once, and return the number of documents found. With `agentic_input`, adds a note on the
    format in which the server expects queries. Raises _UnusableServer if the search fails."""
    base = settings.base
    try:
        with bounded_http_client(min(settings.timeout_s, FIRST_ANSWER_S), headers) as client:
            _check_ready(client, base)
            if settings.agentic_input:
                address, index = ready_address(base)
                notes += _format_notes(settings, address, index, client.get(address))
            payload = settings.wire_format.payload([_PROBE], settings.topk)
            response = client.post(settings.endpoint, json=payload)
    except QueryFormatError as fault:
        raise _UnusableServer(fault.key, fault.what, fault.remedy) from fault
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as fault:
        text = f"no retrieval server answers at {base} ({type(fault).__name__}: {first_line(fault)})"
        remedy = "start it: rag-r1 index serve --index DIR --port PORT; or correct the address"
        raise _UnusableServer(KEY, text, remedy) from fault
    if response.status_code == 401:
        text = "does not accept the token" if headers else "requires a token"
        remedy = f"set the environment variable {TOKEN_VARIABLE} to the token that the server has"
        raise _UnusableServer(KEY, f"the server at {base} {text} (HTTP 401)", remedy)
    if response.status_code == 413:  # the probe is short, so only the number of documents can be too large
        text = f"{settings.topk} documents are more than {base} gives ({first_line(response.text)[:200]})"
        remedy = "lower it, or start the server with a larger --max-topk"
        raise _UnusableServer("rag_r1.retriever.topk", text, remedy)
    return _count_documents(settings, response)


def _check_ready(client: httpx.Client, base: str) -> None:
    """Raise _UnusableServer if the server is not ready, and httpx's errors if it does not answer."""
    for path in ("/ready", "/health"):
        response = client.get(base + path)
        if response.status_code == 503:
            text = f"{base} is up but not ready ({first_line(response.text)[:200]})"
            raise _UnusableServer(KEY, text, "wait until it has loaded its index, or see its log")
        if response.status_code not in (404, 405):
            return  # if both routes are missing, as in Search-R1's server, the search decides


def _count_documents(settings: RetrieverConfig, response: httpx.Response) -> int:
    """Return the number of documents in the answer to a test search. Raises _UnusableServer if the answer
    cannot be read."""
    try:
        if response.status_code != 200:
            raise ValueError(f"HTTP {response.status_code}: {first_line(response.text)[:200]}")
        return len(settings.wire_format.parse_strict(response.json(), 1, settings.topk)[0])
    except (ValueError, RecursionError) as fault:
        text = f"a test search at {settings.endpoint} failed ({fault})"
        remedy = "correct the address, or see the log of the server"
        if is_web_page(response.headers):
            text = f"{settings.base} answers with a web page, so it is not a retrieval server"
            remedy = "correct the address"
        raise _UnusableServer(KEY, text, remedy) from fault


def _limits(settings: RetrieverConfig, headers: dict[str, str]) -> dict[str, float] | None:
    """Return the limits that the server reports in `/health`, also if the address is that of one of its
    indexes; None if it reports none. Only our server does."""
    root = ready_address(settings.base)[0].removesuffix("/ready")
    try:
        with bounded_http_client(settings.timeout_s, headers) as client:
            return limits_in(client.get(f"{root}/health").json())
    except (httpx.HTTPError, OSError, ValueError, RecursionError):
        return None


def _format_notes(
    settings: RetrieverConfig, address: str, index: str | None, answer: httpx.Response
) -> list[str]:
    """Return a note on the format in which the server expects queries, according to its `/ready`.

    There is no note if the server does not report a format and none is needed. Raises QueryFormatError if
    queries cannot be written without it.
    """
    try:
        form = read_format(address, index, answer.status_code, answer.content)
        mode = choose_mode(form, settings.mode)
    except QueryFormatError as fault:
        if fault.stops(settings.mode):
            raise
        return []
    length = "of any length" if form.max_length is None else f"of up to {form.max_length} tokens"
    return [f"{settings.base}: separator {form.separator!r}, mode {mode}, queries {length}"]
