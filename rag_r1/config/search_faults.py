"""Checks the keys of the search tool, which are under `rag_r1.retriever` and `rag_r1.validation_retriever`.

The schema of the block `rag_r1:` (schema.py) does not declare these keys, because they depend on the tool
that is named there. The tool checks them when it is made, so the tool is made here once.
"""

from __future__ import annotations

from typing import Any

from rag_r1.config.schema import RagR1Config, find_faults
from rag_r1.options.import_path import ImportPathError
from rag_r1.tools.registry import DEFAULT_TOOL, make_searcher


def search_faults(settings: RagR1Config) -> list[Exception]:
    """Return the faults of the search tool's keys for training, then those that only validation's have."""
    training = _searcher_faults(settings.retriever)
    texts = {str(fault) for fault in training}
    validation = [str(fault) for fault in _searcher_faults(settings.validation_retriever)]
    return training + [
        ValueError(text.replace("rag_r1.retriever.", "rag_r1.validation_retriever.", 1))
        for text in validation
        if text not in texts
    ]


def _searcher_faults(options: dict[str, Any]) -> list[Exception]:
    """Return the faults of a search tool's options. A tool other than ours reports only one at a time."""
    tool = options.get("tool") or DEFAULT_TOOL
    if tool == DEFAULT_TOOL:
        # A url of null or "???", Hydra's mark of a missing value, counts as not given.
        options = {key: value for key, value in options.items() if key != "url" or value not in (None, "???")}
        return find_faults(make_searcher, options)
    try:
        make_searcher(options)
    except ImportPathError as fault:
        return [fault]
    except Exception as fault:  # a user's factory may raise anything
        has_key = str(fault).startswith("rag_r1.")
        return [ValueError(str(fault) if has_key else f"rag_r1.retriever.tool: {tool!r} raises {fault!r}")]
    return []
