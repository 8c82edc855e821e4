"""Preflight of the retrieval server: it answers, and it finds something."""

from __future__ import annotations

import httpx
from omegaconf import DictConfig, OmegaConf

from rag_r1.preflight.problems import Report, error, first_line, not_given, plain, warning
from rag_r1.tools.registry import DEFAULT_TOOL
from rag_r1.tools.retrieval import RetrieverConfig

_PROBE = "Which river flows through Paris?"


def check_retriever(config: DictConfig, report: Report) -> None:
    """The retrieval server answers: `/ready` (or `/health`), then one real search."""
    options = plain(OmegaConf.select(config, "rag_r1.retriever")) or {}
    another_tool = (options.pop("tool", None) or DEFAULT_TOOL) != DEFAULT_TOOL
    if another_tool or not_given(config, "rag_r1.retriever.url"):
        return
    try:
        settings = RetrieverConfig.from_config(options)
    except (ValueError, TypeError):
        return  # named by check_ours
    key, start = (
        "rag_r1.retriever.url",
        "start it: python retrieval_server/start_retrieval.py --index DIR --port PORT",
    )
    base = settings.base
    try:
        with httpx.Client(timeout=settings.timeout_s, trust_env=False) as client:
            for path in ("/ready", "/health"):
                answer = client.get(base + path)
                if answer.status_code == 503:
                    what = f"{base} is up but not ready ({first_line(answer.text)[:200]})"
                    report.problems.append(
                        error(key, what, "wait until it has loaded its index, or see its log")
                    )
                    return
                if answer.status_code not in (404, 405):
                    break  # Search-R1's server has neither address; the search below decides
            payload = settings.spoken.payload([_PROBE], settings.topk)
            answer = client.post(settings.endpoint, json=payload)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as fault:
        what = f"no retrieval server answers at {base} ({type(fault).__name__}: {first_line(fault)})"
        report.problems.append(error(key, what, f"{start}; or correct the address"))
        return
    try:
        if answer.status_code != 200:
            raise ValueError(f"HTTP {answer.status_code}: {first_line(answer.text)[:200]}")
        documents = settings.spoken.parse(answer.json(), 1, settings.topk)[0]
    except (ValueError, RecursionError) as fault:
        report.problems.append(
            error(key, f"a test search at {settings.endpoint} failed ({fault})", "see its log")
        )
        return
    report.notes.append(f"{base}: answered a test search with {len(documents)} documents")
    if len(documents) < settings.topk:
        what = f"a test search gave {len(documents)} documents where topk={settings.topk}"
        report.problems.append(
            warning("rag_r1.retriever.topk", what, "check that the index holds the corpus you mean")
        )
