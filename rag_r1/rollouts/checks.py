"""Checks of a command that plays episodes: all problems at once, before anything is asked.

A command reads its arguments in the usual way, within `all_problems`. Only if that fails, every part is
checked by itself (the protocol, the prompt, each key, each file of questions, the tokenizer, the folder), so
that one error lists all that a user has to correct (rag_r1/runs/start_checks.py).
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

#: Replaces a protocol that cannot be read, so that the other parts are checked.
_FALLBACK_PROTOCOL = "rag_r1_mq"


@contextmanager
def all_problems(
    args: RolloutArguments, defaults: Mapping[str, Any], extra_checks: Sequence[Callable[[], Any]] = ()
) -> Iterator[None]:
    """A block that reads and checks the arguments of a command. If it fails, raises the error, or StartError
    if there are several problems. `defaults`: as for `prepare` (session.py); `extra_checks`: those of the
    command, each raising for what is wrong."""
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
    """Returns all that is wrong in the arguments and in the files that they name, and what the extra checks
    find; no server is asked but by these. The arguments are as for `all_problems`."""
    checks = StartChecks()

    def check_config(**changes: Any) -> RagR1Config:
        base = {"protocol": protocol, "prompt": None, "overrides": []}
        return config_of(args.changed(**{**base, **changes}), defaults)

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
    """Raises ValueError or DataError for a file of questions that cannot be used."""
    read_questions([path], load_protocol(protocol), skip_bad_rows=args.skip_bad_rows)


def begin_checks(*checks: Callable[[], Any]) -> list[Callable[[], Any]]:
    """Starts these checks of servers at once, each in a thread. Returns a function for each that waits for
    its result or raises its error; it may be called again, and the server is asked only once."""
    pool = ThreadPoolExecutor(len(checks))
    futures = [pool.submit(check) for check in checks]
    pool.shutdown(wait=False)
    return [check.result for check in futures]


def check_search(args: RolloutArguments, defaults: Mapping[str, Any]) -> None:
    """Search once, as a check of `all_problems` for a command that asks the model's server while it reads its
    arguments: so one error reports both servers. Does nothing if the search's own keys are wrong, which are
    reported by themselves. Raises RunError."""
    try:
        config = config_of(args, defaults)
    except FAULTS:  # reported key by key
        plain = args.changed(protocol=_FALLBACK_PROTOCOL, prompt=None, overrides=[])
        valid = [word for word in args.overrides if _is_valid(plain.changed(overrides=[word]), defaults)]
        if any(word.startswith("rag_r1.retriever") for word in {*args.overrides} - {*valid}):
            return
        config = config_of(plain.changed(overrides=valid), defaults)
    run_in_thread(try_servers(try_first_search(config.validation_retriever, args.retriever_url)))


def _is_valid(args: RolloutArguments, defaults: Mapping[str, Any]) -> bool:
    """Whether the block rag_r1 of these arguments can be made."""
    try:
        return bool(config_of(args, defaults))
    except FAULTS:
        return False


def check_servers(args: RolloutArguments, defaults: Mapping[str, Any], url: str, model: str) -> None:
    """Send one request each to the search and to the model's server, as a check of `all_problems` for a
    command that asks no server while it reads its arguments. Raises StartError."""
    server_checks = [partial(check_search, args, defaults)]
    if not args.trust_env:  # behind a proxy, this machine may not reach the server itself
        key_variable, engine = args.api_key_env, args.engine
        server_checks.append(
            partial(check_replies, url, key_variable, "model server", "--base-url", model, engine)
        )
    with StartChecks() as checks:
        for check in begin_checks(*server_checks):
            checks.run(check)


def run_in_thread(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine to its end, also where an event loop is running: in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


async def try_first_search(retriever: Mapping[str, Any], url: str) -> None:
    """Search once with a tool that has the keys `retriever`. Raises what `try_search` raises."""
    # A tool of the user's own has its own keys.
    options = first_search(retriever) if retriever.get("tool", DEFAULT_TOOL) == DEFAULT_TOOL else {}
    searcher = shared_searcher({**retriever, **options})
    try:
        await try_search(searcher, url)
    finally:
        await close_tools({"search": searcher})


async def try_search(tool: Tool, url: str) -> None:
    """Search once, before any episode is played. Raises RunError if that fails, OtherServerError if it is not
    a retrieval server that answers. `url`: the server's address, for the message."""
    query = "Which river flows through Paris?"
    try:
        [result] = await call_tool(tool, [{"query": query}], Context(lambda: CallContext(query)))
    except Exception as error:  # a tool of the user's own may raise anything
        raise RunError(
            f"the search does not work: {type(error).__name__}: {error}: correct the tool or its keys in "
            "rag_r1.retriever"
        ) from error
    if isinstance(result, Failure):
        detail = result.detail or result.reason
        error_type = OtherServerError if is_other_server(detail) else RunError
        raise error_type(search_fault(url, detail, "--retriever-url"))
