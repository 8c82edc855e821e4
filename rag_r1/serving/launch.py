"""Starts the search and model servers that a chat needs.

    --demo          the demo's policy and world (rag_r1/demo/chat.py)
    --documents     an index of a folder of the user's own, and a retrieval server for it
    otherwise       the retrieval server that the user names

The model is served by vLLM (rag_r1/inference/vllm_server.py), unless --base-url names a server.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.target import resolve_model, serve_model
from rag_r1.options.import_path import import_object
from rag_r1.options.out_folder import check_out
from rag_r1.rollouts.checks import begin_checks
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_lock
from rag_r1.runs.start_checks import FAULTS, StartChecks
from rag_r1.serving.agent import check_agent, try_agent_servers
from rag_r1.serving.arguments import ChatAgentArguments, to_eval_arguments
from rag_r1.serving.page import PageInfo, model_name
from rag_r1.tools.documents.corpus import document_files, index_folder
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process

#: What is written anew at each start, below --out. No other module has these names: --out may be a folder
#: in which the user has an `index`, `documents` or the runs of the demo.
_INDEX, _CORPUS = "chat-index", "chat-documents"
#: Starts what `--demo` serves. Named by its import path, because the demo is built on this package.
_DEMO = "rag_r1.demo.chat:start"


@dataclass(frozen=True)
class LaunchedAgent:
    """The arguments of `rag-r1 eval` for an agent whose servers run, and its description for the page."""

    evaluation: EvalArguments
    about: PageInfo


def check_launch(args: ChatAgentArguments, checks: Sequence[Callable[[], Any]] = ()) -> None:
    """Raises StartError, or RunError, with all that is wrong with the arguments, before anything is started
    (rag_r1/serving/agent.py). The demo brings its own model and search, so only --out and `checks` are
    checked then."""
    checks = [partial(check_out, args.out), *checks]
    if args.documents is not None:
        checks.append(partial(_check_documents, args.documents))
    if args.demo or args.model is None:  # no model: the arguments are wrong, and told with these faults
        with StartChecks() as start_checks:
            for check in checks:
                start_checks.run(check)
        return
    evaluation = to_eval_arguments(args)
    if args.base_url is None:
        [resolved] = begin_checks(partial(resolve_model, evaluation))
        checks.append(resolved)
        with suppress(*FAULTS):
            evaluation = resolved()
    config = check_agent(evaluation, checks)
    try_agent_servers(evaluation, config, search=args.documents is None)


def _check_documents(folder: Path) -> None:
    try:
        document_files(folder)
    except RunError as error:
        raise RunError(f"--documents {error}") from error


@contextmanager
def launch_agent(args: ChatAgentArguments) -> Iterator[LaunchedAgent]:
    """Start all servers that the arguments need, for as long as the block runs. Raises RunError."""
    new_folders = [folder for folder in (args.out / _CORPUS, args.out) if not folder.exists()]
    with ExitStack() as stack:
        stack.callback(_remove_empty, new_folders)  # only --documents leaves files there
        in_use = RunError(f"another chat uses the folder {args.out}: choose another --out")
        stack.enter_context(hold_lock(args.out, in_use, name=None))
        start = import_object(_DEMO) if args.demo else _start_search
        evaluation, about = start(args, stack)
        model, step = model_name(evaluation.model)
        evaluation = resolve_model(evaluation)
        if evaluation.base_url is None:
            say(f"starting vLLM for {evaluation.model}; its log: {evaluation.out / 'vllm.log'}")
        evaluation = stack.enter_context(serve_model(evaluation))
        about = replace(about, protocol=evaluation.protocol, history=args.max_history)
        yield LaunchedAgent(evaluation, about if about.model else replace(about, model=model, step=step))


def _start_search(args: ChatAgentArguments, stack: ExitStack) -> tuple[EvalArguments, PageInfo]:
    """Returns the agent's arguments and its description. The folder of --documents, if there is one, is read
    and indexed anew, and its retrieval server started."""
    evaluation = to_eval_arguments(args)
    if args.documents is None:
        url = evaluation.retriever_url
        return evaluation, PageInfo(what="the passages of its retrieval server", index=url)
    say(f"reading the documents in {args.documents}")
    shutil.rmtree(args.out / _INDEX, ignore_errors=True)
    try:
        corpus = index_folder(args.documents, args.out / _CORPUS, skip_bad_files=args.skip_bad_files)
    except RunError as error:
        raise RunError(f"--documents {error}") from error
    evaluation = evaluation.model_copy(update={"retriever_url": start_search(corpus, args.out, stack)})
    name = args.documents.name
    return evaluation, PageInfo(what=f"the documents in {name}", index=f"BM25 of {name}")


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove those of the folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def start_search(corpus: Path, out: Path, stack: ExitStack) -> str:
    """Index a corpus and start a retrieval server for it, with index and log in `out`; returns its
    address."""
    say("building the BM25 index")
    index = build_index(corpus, out / _INDEX, "--backend", "bm25")
    return stack.enter_context(retrieval_process(index, out / "search.log"))


def say(text: str) -> None:
    """Print a line about the start to stderr."""
    print(text, file=sys.stderr, flush=True)
