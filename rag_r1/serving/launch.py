"""Starts the search and model servers that a chat needs.

The search depends on the arguments:

    --demo          the retrieval server of the demo's world (rag_r1/demo/chat.py)
    --documents     a retrieval server for an index of the user's folder, which is built first
    otherwise       the user's retrieval server at --retriever-url

The model is served with vLLM (rag_r1/inference/vllm_server.py), unless --base-url names a server.
`check_launch` checks everything beforehand, so that nothing is started with wrong arguments.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.target import check_vllm_options, resolve_model, serve_model
from rag_r1.options.import_path import import_object
from rag_r1.options.out_folder import check_out
from rag_r1.rollouts.checks import start_problems
from rag_r1.rollouts.search_check import check_search
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_lock
from rag_r1.runs.start_checks import FAULTS, StartChecks, StartError, begin_checks
from rag_r1.serving.agent import check_agent, try_agent_servers
from rag_r1.serving.arguments import ChatAgentArguments, to_eval_arguments
from rag_r1.serving.page import PageInfo, model_name
from rag_r1.tools.documents.corpus import count_passages, document_files, index_folder
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process

#: Folders below --out that are written anew at each start. Their names are unusual, because --out may be a
#: folder in which the user has an `index`, `documents` or runs of the demo.
_INDEX, _CORPUS = "chat-index", "chat-documents"
#: The function that starts the demo's servers. It is imported by its path, since the demo imports this
#: package.
_DEMO = "rag_r1.demo.chat:start"


@dataclass(frozen=True)
class LaunchedAgent:
    """An agent whose servers are running."""

    #: The arguments of `rag-r1 eval` with which the agent is made.
    evaluation: EvalArguments
    #: The description of the agent for the page.
    about: PageInfo


def check_launch(args: ChatAgentArguments, checks: Sequence[Callable[[], Any]] = ()) -> None:
    """Check the arguments and the servers that run already, before anything is started. `checks` are further
    checks of the command. The demo has its own model and search, which are not checked. Raises StartError
    with all problems.

    Documents are read if something else is wrong, and with --check-only. Otherwise the start reads them."""
    checks = [partial(check_out, args.out, "rag-r1 serve"), *checks]
    with StartChecks() as start_checks:
        if args.demo or args.model is None:  # without --demo, the arguments are wrong already
            _check_without_model(args, checks, start_checks)
        else:
            _check_agent(args, checks, start_checks)
        if args.documents is not None and not args.demo:  # with --demo, the arguments are wrong already
            is_read = args.is_partial or bool(start_checks.problems) or getattr(args, "check_only", False)
            start_checks.run(_check_documents, args, is_read=is_read)


def _check_agent(
    args: ChatAgentArguments, checks: Sequence[Callable[[], Any]], start_checks: StartChecks
) -> None:
    """Check the agent together with these checks of the command, and its servers."""
    evaluation = to_eval_arguments(args)
    if args.base_url is None:
        [model_check] = begin_checks(partial(resolve_model, evaluation))
        checks = [*checks, model_check]
        with suppress(*FAULTS):
            evaluation = model_check()
    start_checks.run(check_agent, evaluation, checks)
    start_checks.run(try_agent_servers, evaluation, search=args.documents is None)


def _check_without_model(
    args: ChatAgentArguments, checks: Sequence[Callable[[], Any]], start_checks: StartChecks
) -> None:
    """Check everything but the model, which is missing or the demo's. The search is only tried if its address
    was given, since a chat with a wrong --url needs none."""
    evaluation = start_checks.run(to_eval_arguments, args.model_copy(update={"model": "?"}))
    if evaluation is not None:
        checks = [*checks, partial(check_vllm_options, evaluation)]
        start_checks.add(StartError(start_problems(evaluation, {}, checks)))
        if "retriever_url" in args.model_fields_set and args.documents is None:
            start_checks.run(check_search, evaluation, {})


def _check_documents(args: ChatAgentArguments, *, is_read: bool) -> None:
    """Raise RunError for a folder of --documents that cannot be used. Unless it `is_read`, only the names of
    its files are checked."""
    assert args.documents is not None  # is not called without it
    run = None if args.is_partial else args.out  # which may be wrong
    try:
        if is_read:
            count_passages(args.documents, run, skip_bad_files=args.skip_bad_files)
        else:
            document_files(args.documents, run)
    except RunError as error:
        raise RunError(f"--documents {error}") from error


@contextmanager
def launch_agent(args: ChatAgentArguments) -> Iterator[LaunchedAgent]:
    """Start all servers that the arguments need, and stop them after the block. Raises RunError if one of
    them does not start or another chat uses --out, and OSError if --out cannot be used."""
    new_folders = [folder for folder in (args.out / _CORPUS, args.out) if not folder.exists()]
    with ExitStack() as stack:
        stack.callback(_remove_empty, new_folders)  # nothing is put there if all servers are the user's
        in_use = RunError(f"another chat uses the folder {args.out}: choose another --out")
        stack.enter_context(hold_lock(args.out, in_use, name=None))
        start = import_object(_DEMO) if args.demo else _start_without_demo
        evaluation, about = start(args, stack)
        model, step = model_name(evaluation.model)
        evaluation = resolve_model(evaluation, checks_options=False)  # `check_launch` has checked them
        if evaluation.base_url is None:
            say(f"starting vLLM for {evaluation.model}; its log: {evaluation.out / 'vllm.log'}")
        evaluation = stack.enter_context(serve_model(evaluation))
        about = replace(about, protocol=evaluation.protocol, history=args.max_history)
        yield LaunchedAgent(evaluation, about if about.model else replace(about, model=model, step=step))


def _start_without_demo(args: ChatAgentArguments, stack: ExitStack) -> tuple[EvalArguments, PageInfo]:
    """Return the agent's arguments and its description. With --documents, the folder is indexed anew and a
    retrieval server is started for it, which runs until `stack` is closed. Raises RunError if that fails."""
    evaluation = to_eval_arguments(args)
    if args.documents is None:
        return evaluation, PageInfo(what="the passages of its retrieval server", index=args.retriever_url)
    say(f"reading the documents in {args.documents}")
    shutil.rmtree(args.out / _INDEX, ignore_errors=True)
    try:
        out, skip = args.out / _CORPUS, args.skip_bad_files
        corpus = index_folder(args.documents, out, run=args.out, skip_bad_files=skip)
    except RunError as error:
        raise RunError(f"--documents {error}") from error
    evaluation = evaluation.model_copy(update={"retriever_url": start_search(corpus, args.out, stack)})
    name = Path(os.path.abspath(args.documents)).name  # `.` has none
    return evaluation, PageInfo(what=f"the documents in {name}", index=f"BM25 of {name}")


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove the folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def start_search(corpus: Path, out: Path, stack: ExitStack) -> str:
    """Index a corpus with BM25, start a retrieval server for it and return its address. The server runs until
    `stack` is closed; its index and its log are in `out`. Raises RunError if it does not start."""
    say("building the BM25 index")
    index = build_index(corpus, out / _INDEX, "--backend", "bm25")
    return stack.enter_context(retrieval_process(index, out / "search.log"))


def say(text: str) -> None:
    """Print a line about the progress of the start to stderr."""
    print(text, file=sys.stderr, flush=True)
