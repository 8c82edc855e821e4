"""Runs an evaluation: checks its inputs, starts its servers and plays the agent, a baseline or all probes.

The servers and the files are checked concurrently, so that one error reports all problems; then the questions
are played by condition_run.py, or by probes/suite.py for a search card.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rag_r1.corpus.inputs import check_first_rows
from rag_r1.corpus.reader import Corpus
from rag_r1.evaluation.baselines import AGENT, Condition, agent_condition, baseline
from rag_r1.evaluation.condition_run import (
    check_condition,
    check_known_condition,
    check_questions,
    run_condition,
)
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.evaluation.evaluation_inputs import file_checks, prepare_evaluation
from rag_r1.evaluation.judge import check_judge
from rag_r1.evaluation.probes.suite import gather_passages, make_search_card
from rag_r1.evaluation.target import check_served_model, resolve_model, serve_model
from rag_r1.rollouts.checks import all_problems
from rag_r1.rollouts.search_check import check_search
from rag_r1.rollouts.session import RunSetup, check_only
from rag_r1.runs.start_checks import StartChecks, begin_checks
from rag_r1.tools.retrieval.local_server import check_served_index, retrieval_process

#: The log of the retrieval server that --serve-index starts, in the run's folder.
SEARCH_LOG = "retriever.log"


async def evaluate(args: EvalArguments) -> int:
    """Evaluate the policy under the condition that the arguments select, and return the exit status. Raises
    StartError with all problems, and the errors of `run_condition`."""
    # The server of --serve-index is not running yet.
    checks_search = args.serve_index is None and args.baseline in (None, "one_shot")
    judge_check, model_check, *search_checks = begin_checks(
        partial(check_judge, args),
        partial(resolve_model, args),
        *([partial(check_search, args, defaults={})] if checks_search else []),
    )
    with ExitStack() as servers:
        own_checks = [partial(check, args) for check in (_check_corpus, _check_served_index)]
        own_checks.append(partial(check_served_model, args, model_check))
        own_checks.append(partial(check_known_condition, args, args.baseline or AGENT))
        server_checks = [judge_check, model_check, *search_checks]
        with all_problems(args, defaults={}, extra_checks=[*server_checks, *own_checks, *file_checks(args)]):
            _check_corpus(args)
            _check_served_index(args)
            judge_check()
            args = model_check()
            if args.serve_index is not None:  # what is refused starts no server, which writes its log
                _condition_of(args, prepare_evaluation(args))
            args = servers.enter_context(_serve_search(args))
            run_setup = prepare_evaluation(args)
            condition = _condition_of(args, run_setup)
            for search_check in search_checks:
                search_check()
        if not args.card:  # which has a folder for each condition
            check_condition(args, run_setup, condition, args.out)
        if args.check_only:
            return await check_only(args, run_setup, args.base_url, args.model, searches=condition.searches)
        passages = gather_passages(args, run_setup) if args.card else None
        args = servers.enter_context(serve_model(args))
        if passages is not None:
            return await make_search_card(args, run_setup, passages)
        return await run_condition(args, run_setup, condition, args.out)


def _condition_of(args: EvalArguments, run_setup: RunSetup) -> Condition:
    """Return the condition of the evaluation. Raises RunError if no question can be asked under it."""
    setup = run_setup.setup
    condition = agent_condition(setup) if args.baseline is None else baseline(args.baseline, setup)
    check_questions(run_setup, condition)
    return condition


def _check_corpus(args: EvalArguments) -> None:
    """Raise StartError if the first rows of a --corpus file cannot be read."""
    if args.corpus:
        with StartChecks() as checks:
            checks.run_on_all(lambda paths: check_first_rows(Corpus(paths), args.skip_bad_rows), args.corpus)


def _check_served_index(args: EvalArguments) -> None:
    """Raise RunError for a --serve-index without a manifest."""
    if args.serve_index is not None:
        check_served_index(args.serve_index, "--serve-index")


@contextmanager
def _serve_search(args: EvalArguments) -> Iterator[EvalArguments]:
    """Yield the arguments with the address of a retrieval server. With --serve-index, the server is started
    for the duration of the block; with --check-only its log is a temporary file. Raises RunError if it does
    not start."""
    if args.serve_index is None:
        yield args
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory())) if args.check_only else args.out
        folder.mkdir(parents=True, exist_ok=True)
        url = stack.enter_context(retrieval_process(args.serve_index, folder / SEARCH_LOG))
        yield args.model_copy(update={"retriever_url": url, "index": args.index or args.serve_index})
