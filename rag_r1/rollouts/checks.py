"""Checks the arguments and servers of a command that plays episodes, and reports all problems at once.

A command reads its arguments in the usual way inside the block `all_problems`. Only if that fails, every part
is checked separately (the protocol, the prompt, each key, each file of questions, the tokenizer, the folder),
so that one error lists everything that the user has to correct (rag_r1/runs/start_checks.py). `check_servers`
is such a check, too: it tries the search (search_check.py) and, unless proxies are used, the model's server
(server_check.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.data.files.row_files import refuse_repeated
from rag_r1.io.unknown_value import needs_unknown
from rag_r1.options.import_path import add_working_directory
from rag_r1.options.out_folder import check_out
from rag_r1.protocols import load_protocol
from rag_r1.rollouts.arguments import RolloutArguments, check_paths, config_of
from rag_r1.rollouts.engine_factory import TokenUnit
from rag_r1.rollouts.requests import read_questions
from rag_r1.rollouts.search_check import FALLBACK_PROTOCOL, check_search
from rag_r1.rollouts.server_check import ModelServer, check_replies
from rag_r1.rollouts.session import (
    argument_settings,
    config_settings,
    question_settings,
    reward_of,
    reward_settings,
)
from rag_r1.runs.folder import check_settings
from rag_r1.runs.start_checks import FAULTS, StartChecks, StartError, begin_checks


@contextmanager
def all_problems(
    args: RolloutArguments, defaults: Mapping[str, Any], extra_checks: Sequence[Callable[[], Any]] = ()
) -> Iterator[None]:
    """Context of the code that reads and checks a command's arguments. If that code fails, all parts are
    checked separately. Raises StartError with all problems, the original error among them, if there are
    several, or if the code failed because a value is UNKNOWN and there is another problem; raises the
    original error otherwise.

    `defaults` has the same meaning as in `prepare` (session.py). `extra_checks` are further checks of the
    command, each of which raises an error for a problem."""
    try:
        yield
    except FAULTS as error:
        # In a thread: an error that is raised while this one is handled would count as its consequence.
        with ThreadPoolExecutor(1) as thread:
            problems = thread.submit(start_problems, args, defaults, extra_checks).result()
        checks = StartChecks()
        checks.add(StartError(problems))
        checks.add(error)  # a separate check may not find it
        if len(checks.problems) < (1 if needs_unknown(error) else 2):
            raise
        raise StartError(checks.problems) from error


def start_problems(
    args: RolloutArguments, defaults: Mapping[str, Any], extra_checks: Sequence[Callable[[], Any]] = ()
) -> list[str]:
    """Return all problems of the arguments and of the files that they name, and those that the extra checks
    find. Only the extra checks send requests to servers, but a tokenizer may be fetched from the Hub. The
    parameters are those of `all_problems`."""
    checks = StartChecks()
    # Has only parts that are valid. Each part of `args` is checked in a copy of it.
    plain = args.changed(protocol=FALLBACK_PROTOCOL, prompt=None, overrides=[])
    for command_check in extra_checks:
        checks.run(command_check)
    if checks.run(config_of, plain.changed(protocol=args.protocol), defaults) is not None:
        plain = plain.changed(protocol=args.protocol)
    if args.prompt is not None:
        checks.run(config_of, plain.changed(prompt=args.prompt), defaults)
    for override in args.overrides:
        if (config := checks.run(config_of, plain.changed(overrides=[override]), defaults)) is not None:
            checks.run(check_paths, args, config.validation_agent.paths)
    rewards = [key for key in args.overrides if key.lstrip("+").startswith("rag_r1.reward=")]
    checks.run(_check_reward, plain.changed(overrides=rewards), defaults)
    for path in args.questions:
        checks.run(_check_questions, args, path, plain.protocol)
    checks.run(refuse_repeated, args.questions)
    if args.tokenizer is not None:
        checks.run(TokenUnit.of, args.tokenizer)
    checks.run(check_out, args.out)
    return checks.problems


def _check_reward(args: RolloutArguments, defaults: Mapping[str, Any]) -> None:
    """Read the reward terms and --term. Raises ValueError or StartError if they cannot be used."""
    reward_of(args, config_of(args, defaults))


def _check_questions(args: RolloutArguments, path: Path, protocol: str) -> None:
    """Read a file of questions. Raises ValueError or DataError if it cannot be used."""
    read_questions([path], load_protocol(protocol), skip_bad_rows=args.skip_bad_rows)


def check_servers(args: RolloutArguments, defaults: Mapping[str, Any], url: str, model: str) -> None:
    """Try the search and, unless proxies are used, the model's server, as one of the checks of
    `all_problems`, for a command that contacts no server while it reads its arguments. Raises StartError with
    the faults of both."""
    server_checks = [partial(check_search, args, defaults)]
    if not args.trust_env:  # behind a proxy, this machine may not reach the server itself
        server = ModelServer(url, args.api_key_env, model, model_flag=args.model_flag)
        server_checks.append(partial(check_replies, server, args.engine))
    with StartChecks() as checks:
        for check in begin_checks(*server_checks):
            checks.run(check)


def check_known_settings(
    args: RolloutArguments, defaults: Mapping[str, Any], *, validation: bool = False, **settings: Any
) -> None:
    """Compare the settings that are known before a server is asked with those of the run in --out, if any, as
    a check of `all_problems`. Settings that follow from something wrong, which another check reports, are
    left out. The parameters are those of `prepare` and
    of `settings_of` (session.py). Raises RunError if a setting has
    changed."""
    if not args.out.exists():
        return
    known = {**argument_settings(args), **settings}
    if args.engine == "chat" or args.tokenizer is not None:  # else it is the model's
        known["tokenizer"] = args.tokenizer or TokenUnit.of(None).name
    add_working_directory()
    with suppress(*FAULTS):
        config = config_of(args, defaults)
        known |= config_settings(config, config.validation_retriever if validation else config.retriever)
        known |= reward_settings(*reward_of(args, config))
    with suppress(*FAULTS):
        protocol = config_of(args.changed(overrides=[]), defaults).protocol
        questions = read_questions(
            args.questions, protocol, skip_bad_rows=args.skip_bad_rows, limit=args.limit
        )
        known |= question_settings(questions)
    check_settings(args.out, known, is_complete=False)
