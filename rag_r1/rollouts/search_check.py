"""Tries the search of a command that plays episodes with one request, before any episode is played.

`check_search` is a check of the command's arguments (checks.py); `try_first_search` makes the tool from its
keys, and `try_search` asks a tool that exists. The request is the same for every search: one query, whose
results are thrown away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rag_r1.agent import Tool
from rag_r1.agent.interfaces import call_tool
from rag_r1.options.server_address import is_other_server, search_fault
from rag_r1.protocols import Failure
from rag_r1.protocols.retriever_query import CallContext, Context
from rag_r1.rollouts.arguments import RolloutArguments, config_of
from rag_r1.runs.errors import OtherServerError, RunError
from rag_r1.runs.start_checks import FAULTS, run_in_thread, try_servers
from rag_r1.tools import close_tools, shared_searcher
from rag_r1.tools.registry import DEFAULT_TOOL
from rag_r1.tools.retrieval.options import first_search

#: Stands in for a protocol that cannot be read, so that the other parts can still be checked.
FALLBACK_PROTOCOL = "rag_r1_mq"
#: Keys of rag_r1.retriever that affect the speed of a search, but not its results.
_SPEED_KEYS = "url timeout_s retries backoff_s cache_size max_connections gather_s max_queries".split()
#: An override that decides which search is used, and in which format.
_DECISIVE_KEY = re.compile(r"\+*rag_r1\.(validation_)?retriever(\.(tool|url|wire)\b.*|=.*)")


def check_search(args: RolloutArguments, defaults: Mapping[str, Any]) -> None:
    """Search once, as one of the checks of `all_problems`. A command that contacts the model's server while
    it reads its arguments uses this, so that one error reports both servers.

    Wrong overrides are left out here, since they are reported separately. Does nothing if one of them decides
    which search is used. Raises RunError if the search does not work, and the errors of `config_of` for
    overrides that are valid one by one, but not together."""
    try:
        config = config_of(args, defaults)
    except FAULTS:
        plain = args.changed(protocol=FALLBACK_PROTOCOL, prompt=None, overrides=[])
        valid = [key for key in args.overrides if _is_valid(plain.changed(overrides=[key]), defaults)]
        if any(_DECISIVE_KEY.match(override) for override in args.overrides if override not in valid):
            return
        config = config_of(plain.changed(overrides=valid), defaults)
    run_in_thread(try_servers(try_first_search(config.validation_retriever, args.retriever_url)))


def _is_valid(args: RolloutArguments, defaults: Mapping[str, Any]) -> bool:
    """Return whether these arguments make a valid block rag_r1."""
    try:
        return bool(config_of(args, defaults))
    except FAULTS:
        return False


async def try_first_search(retriever: Mapping[str, Any], url: str) -> None:
    """Search once with a tool made of the keys `retriever`. Their url, if there is one, replaces `url`, the
    value of --retriever-url. Raises the errors of `try_search`."""
    # The options of a first search are keys of the default tool; a custom tool has other keys.
    options = first_search(retriever) if retriever.get("tool", DEFAULT_TOOL) == DEFAULT_TOOL else {}
    searcher = shared_searcher({**retriever, **options})
    try:
        address = str(retriever.get("url") or url)
        await try_search(searcher, address, "--retriever-url" if address == url else "rag_r1.retriever.url")
    finally:
        await close_tools({"search": searcher})


async def try_search(tool: Tool, url: str, url_source: str = "--retriever-url") -> None:
    """Search once, before any episode is played. Raises RunError if that fails, and OtherServerError if
    something other than a retrieval server answers. `url` is the address for the message, and `url_source`
    the flag or key that names it."""
    query = "Which river flows through Paris?"
    try:
        [result] = await call_tool(tool, [{"query": query}], Context(lambda: CallContext(query)))
    except Exception as error:  # a custom tool may raise anything
        raise RunError(
            f"the search does not work: {type(error).__name__}: {error}: correct the tool or its keys in "
            "rag_r1.retriever"
        ) from error
    if isinstance(result, Failure):
        detail = result.detail or result.reason
        error_type = OtherServerError if is_other_server(detail) else RunError
        raise error_type(search_fault(url, detail, url_source))


def search_settings(retriever: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a search that affect its results."""
    return {key: value for key, value in retriever.items() if key not in _SPEED_KEYS}
