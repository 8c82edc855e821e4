"""Checks of a command that plays episodes: all problems at once, before anything is asked.

A command reads its arguments in the usual way, within `all_problems`. Only if that fails, every part is tried
by itself (the protocol, the prompt, each key, each file of questions, the tokenizer, the folder), so that one
error lists all that a user has to correct. Then the servers are tried with one request each, all of them even
if one fails (`try_servers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rag_r1.agent import Tool
from rag_r1.agent.interfaces import call_tool
from rag_r1.config.schema import RagR1Config
from rag_r1.inference.checkpoints import is_hub_name
from rag_r1.options.server_address import is_refused, server_fault
from rag_r1.protocols import Failure, load_protocol
from rag_r1.protocols.retriever_query import CallContext, Context
from rag_r1.rewards import RewardError
from rag_r1.rollouts.arguments import RolloutArguments, block_of
from rag_r1.rollouts.engine_factory import TokenUnit
from rag_r1.rollouts.requests import read_questions
from rag_r1.runs.errors import RunError

#: What a user can correct.
_FAULTS = (ValueError, RunError, RewardError, OSError)
#: Takes the place of a protocol that cannot be read, so that the rest is checked.
_ANY_PROTOCOL = "rag_r1_mq"


def start_error(problems: Sequence[str]) -> RunError:
    """A command cannot start, for one or several reasons, each with its remedy."""
    if len(problems) == 1:
        return RunError(problems[0])
    return RunError("\n".join([f"{len(problems)} problems:", *(f"  - {problem}" for problem in problems)]))


@contextmanager
def all_problems(
    args: RolloutArguments, defaults: Mapping[str, Any], more: Sequence[Callable[[], Any]] = ()
) -> Iterator[None]:
    """Around what reads the arguments of a command: if that fails, RunError with all problems. `defaults`:
    as for `prepare` (session.py); `more`: further checks of the command, each raising for what is wrong."""
    try:
        yield
    except _FAULTS as error:
        problems = start_problems(args, defaults, more)
        if len(problems) < 2:
            raise
        raise start_error(problems) from error


def start_problems(
    args: RolloutArguments, defaults: Mapping[str, Any], more: Sequence[Callable[[], Any]] = ()
) -> list[str]:
    """What is wrong in the arguments and in the files that they name; nothing is asked of a server. The
    arguments are as for `all_problems`."""
    problems: dict[str, None] = {}  # each once, in order

    def check(work: Callable[[], Any]) -> bool:
        try:
            work()
        except _FAULTS as error:
            problems[str(error)] = None
            return False
        return True

    def configured(**changes: Any) -> None:
        plain = {"protocol": protocol, "prompt": None, "overrides": []}
        RagR1Config.from_config(block_of(args.changed(**{**plain, **changes}), defaults))

    protocol = _ANY_PROTOCOL
    for command_check in more:
        check(command_check)
    if check(lambda: configured(protocol=args.protocol)):
        protocol = args.protocol
    if args.prompt is not None:
        check(lambda: configured(prompt=args.prompt))
    for override in args.overrides:
        check(lambda override=override: configured(overrides=[override]))
    for path in args.questions:
        check(lambda path=path: _read(args, path, protocol))
    if args.tokenizer is not None and not is_hub_name(args.tokenizer):
        check(lambda: TokenUnit.of(args.tokenizer))
    if args.out.exists() and not args.out.is_dir():
        problems[f"--out {args.out} is a file: give a folder"] = None
    return list(problems)


def _read(args: RolloutArguments, path: Any, protocol: str) -> None:
    read_questions([path], load_protocol(protocol), skip_bad_rows=args.skip_bad_rows)


async def try_servers(*attempts: Awaitable[Any]) -> list[Any]:
    """The results of these, which are all awaited. Raises RunError with all that they raise; any other error,
    and a cancellation, as it comes."""
    results = await asyncio.gather(*attempts, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, RunError):
            raise result
    if failures := [result for result in results if isinstance(result, RunError)]:
        raise start_error([str(failure) for failure in failures])
    return results


async def try_search(tool: Tool, url: str) -> None:
    """One search, before any episode is played. Raises RunError if it fails; `url`: of the retrieval server,
    for the message."""
    query = "Which river flows through Paris?"
    try:
        [result] = await call_tool(tool, [{"query": query}], Context(lambda: CallContext(query)))
    except Exception as error:  # a tool of the user's own may raise anything
        raise RunError(f"the search does not work: {type(error).__name__}: {error}") from error
    if isinstance(result, Failure):
        why = result.detail or result.reason
        if not is_refused(why):
            raise RunError(f"the search does not work: {why}. Correct the server, or --retriever-url")
        start = "rag-r1 index serve --index DIR --port {port}"
        raise RunError(server_fault("retrieval server", url, why, start, "--retriever-url"))
