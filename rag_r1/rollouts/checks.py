"""Checks the arguments and servers of a command that plays episodes, and reports all problems at once.

A command reads its arguments in the usual way inside the block `all_problems`. Only if that fails, every part
is checked separately (the protocol, the prompt, each key, each file of questions, the tokenizer, the folder),
so that one error lists everything that the user has to correct (rag_r1/runs/start_checks.py). `check_search`
and `check_servers` are such checks too: they send one request to each server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.agent import Tool
from rag_r1.agent.interfaces import call_tool
from rag_r1.config.schema import RagR1Config
from rag_r1.inference.model_folders import is_hub_name
from rag_r1.options.out_folder import check_out
from rag_r1.options.server_address import is_other_server, search_fault
from rag_r1.protocols import Failure, load_protocol
from rag_r1.protocols.retriever_query import CallContext, Context
from rag_r1.rollouts.arguments import RolloutArguments, config_of
from rag_r1.rollouts.engine_factory import TokenUnit
from rag_r1.rollouts.requests import read_questions
from rag_r1.rollouts.server_check import check_replies
from rag_r1.runs.errors import OtherServerError, RunError
from rag_r1.runs.start_checks import FAULTS, StartChecks, StartError, try_servers
from rag_r1.tools import close_tools, shared_searcher
from rag_r1.tools.registry import DEFAULT_TOOL
from rag_r1.tools.retrieval.options import first_search

#: Stands in for a protocol that cannot be read, so that the other parts can still be checked.
_FALLBACK_PROTOCOL = "rag_r1_mq"


@contextmanager
def all_problems(
    args: RolloutArguments, defaults: Mapping[str, Any], extra_checks: Sequence[Callable[[], Any]] = ()
) -> Iterator[None]:
    """Context of the code that reads and checks a command's arguments. If that code fails, all parts are
    checked separately: raises StartError if there are several problems, and the original error otherwise.

    `defaults` has the same meaning as in `prepare` (session.py). `extra_checks` are further checks of the
    command, each of which raises an error for a problem."""
    try:
        yield
    except FAULTS as error:
        problems = start_problems(args, defaults, extra_checks)
        if len(problems) < 2:
            raise
        raise StartError(problems) from error


def start_problems(
    args: RolloutArguments, defaults: Mapping[str, Any], extra_checks: Sequence[Callable[[], Any]] = ()
) -> list[str]:
    """Return all problems of the arguments and of the files that they name, and those that the extra checks
    find. Only the extra checks send requests to servers. The parameters are those of `all_problems`."""
    checks = StartChecks()

    def check_config(**changes: Any) -> RagR1Config:
        valid_parts = {"protocol": protocol, "prompt": None, "overrides": []}
        return config_of(args.changed(**{**valid_parts, **changes}), defaults)

    protocol = _FALLBACK_PROTOCOL
    for command_check in extra_checks:
        checks.run(command_check)
    if checks.run(check_config, protocol=args.protocol) is not None:
        protocol = args.protocol
    if args.prompt is not None:
        checks.run(check_config, prompt=args.prompt)
    for override in args.overrides:
        checks.run(check_config, overrides=[override])
    for path in args.questions:
        checks.run(_check_questions, args, path, protocol)
    if args.tokenizer is not None and not is_hub_name(args.tokenizer):
        checks.run(TokenUnit.of, args.tokenizer)
    checks.run(check_out, args.out)
    return checks.problems


def _check_questions(args: RolloutArguments, path: Path, protocol: str) -> None:
    """Read a file of questions. Raises ValueError or DataError if it cannot be used."""
    read_questions([path], load_protocol(protocol), skip_bad_rows=args.skip_bad_rows)


def begin_checks(*checks: Callable[[], Any]) -> list[Callable[[], Any]]:
    """Start checks of servers concurrently, each in a thread. Returns one function per check, which waits
    for the check and returns its result or raises its error; calling it twice does not repeat the check."""
    pool = ThreadPoolExecutor(len(checks))
    futures = [pool.submit(check) for check in checks]
    pool.shutdown(wait=False)
    return [check.result for check in futures]


def check_search(args: RolloutArguments, defaults: Mapping[str, Any]) -> None:
    """Search once, as one of the checks of `all_problems`. A command that contacts the model's server while
    it reads its arguments uses this, so that one error reports both servers.

    Does nothing if the keys of the search are wrong, since those are reported separately. Raises RunError if
    the search does not work."""
    try:
        config = config_of(args, defaults)
    except FAULTS:  # these are reported key by key; here the wrong ones are left out
        plain = args.changed(protocol=_FALLBACK_PROTOCOL, prompt=None, overrides=[])
        valid = [word for word in args.overrides if _is_valid(plain.changed(overrides=[word]), defaults)]
        wrong = {word.lstrip("+") for word in {*args.overrides} - {*valid}}
        if any(word.startswith(("rag_r1.retriever", "rag_r1.validation_retriever")) for word in wrong):
            return
        config = config_of(plain.changed(overrides=valid), defaults)
    run_in_thread(try_servers(try_first_search(config.validation_retriever, args.retriever_url)))


def _is_valid(args: RolloutArguments, defaults: Mapping[str, Any]) -> bool:
    """Return whether these arguments make a valid block rag_r1."""
    try:
        return bool(config_of(args, defaults))
    except FAULTS:
        return False


def check_servers(args: RolloutArguments, defaults: Mapping[str, Any], url: str, model: str) -> None:
    """Send one request each to the search and to the model's server, as one of the checks of `all_problems`,
    for a command that contacts no server while it reads its arguments. Raises StartError."""
    server_checks = [partial(check_search, args, defaults)]
    if not args.trust_env:  # behind a proxy, this machine may not reach the server itself
        model_server = (url, args.api_key_env, "model server", "--base-url", model)
        server_checks.append(partial(check_replies, *model_server, args.engine, args.model_flag))
    with StartChecks() as checks:
        for check in begin_checks(*server_checks):
            checks.run(check)


def run_in_thread(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine to its end in a new thread, which also works where an event loop is running."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


async def try_first_search(retriever: Mapping[str, Any], url: str) -> None:
    """Search once with a tool made of the keys `retriever`. Raises the errors of `try_search`."""
    # The options of a first search are keys of the default tool; a custom tool has other keys.
    options = first_search(retriever) if retriever.get("tool", DEFAULT_TOOL) == DEFAULT_TOOL else {}
    searcher = shared_searcher({**retriever, **options})
    try:
        await try_search(searcher, url)
    finally:
        await close_tools({"search": searcher})


async def try_search(tool: Tool, url: str) -> None:
    """Search once, before any episode is played. Raises RunError if that fails, and OtherServerError if
    something other than a retrieval server answers. `url` is the address for the message."""
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
        raise error_type(search_fault(url, detail, "--retriever-url"))
