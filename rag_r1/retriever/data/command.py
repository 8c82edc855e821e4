"""`rag-r1 retriever data`: makes training data for a retriever from the agent's searches (Agentic-R).

The command runs five steps (steps.py), each of which writes a file or folder:

    trajectories   the agent answers the questions, greedily, as in an evaluation     trajectories/
    candidates     the current retriever's best passages for each search              candidates.jsonl
    correctness    is the agent's answer right with one candidate alone? (GAC)        correctness.jsonl
    relevance      the score of each candidate by a judge or by a rule (LR)           relevance.jsonl
    selection      training rows of positives and negatives by these two scores       train.jsonl

Besides, `passages.jsonl` has the text of all candidates, `sub_answers.jsonl` the answer that the judge
expects of each search, and `summary.json` the figures.

Each step records its results in `steps/` (journal.py), so the command can be killed at any moment: run again,
it resumes, repeats no request that was answered, and ends with the same files. All random choices depend only
on the seed and the round. If a search, a continuation or a request to the judge fails, its round is left out
until a later run succeeds; complete rounds are written anyway.

The selection reads the recorded scores, so another rule needs no new scores: run the same command with it, or
`rag-r1 retriever select`, which needs no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from rag_r1.evaluation.evaluation_inputs import file_checks, prepare_policy
from rag_r1.evaluation.judge import check_judge
from rag_r1.evaluation.target import check_served_model, resolve_model
from rag_r1.io.atomic_files import write_json
from rag_r1.options.command_exit import ExitStatus
from rag_r1.retriever.data.arguments import DataArguments
from rag_r1.retriever.data.candidates import CandidateStore, retriever_settings
from rag_r1.retriever.data.check_run import check_run
from rag_r1.retriever.data.steps import (
    DataRun,
    find_candidates,
    score_correctness,
    score_relevance,
    trajectories_of,
)
from rag_r1.retriever.data.trajectories import check_trajectories
from rag_r1.retriever.records import CANDIDATES, CORRECTNESS, PASSAGES, RELEVANCE, TRAIN, write_records
from rag_r1.retriever.selection.rules import RowSelection
from rag_r1.retriever.selection.scores import ScoreFiles
from rag_r1.rollouts.checks import all_problems
from rag_r1.rollouts.command_run import read_and_run
from rag_r1.rollouts.search_check import check_search
from rag_r1.rollouts.session import RunSetup, check_only
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import begin_checks

COMMAND = "rag-r1 retriever data"
_DESCRIPTION = """\
Make training data for a retriever: which passages help the agent? The agent plays questions; for each of its
searches the retriever's best passages are tried out one by one, and a judge scores them. Run again, the same
command goes on where it was interrupted, and sends no request twice.

example:
  rag-r1 retriever data --model outputs/agent --questions data/hotpotqa/train.parquet --protocol search_r1 \\
      --retriever-url http://127.0.0.1:8000 --judge-url http://127.0.0.1:8001/v1 --judge-model judge \\
      --out data/agentic_r/round1 --estimate

With --estimate it prints what the scores will cost, and ends; without, it goes on to train.jsonl.
"""
SUMMARY = "summary.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 when the rows are written (or the estimate or the checks are done), 3 if the
    run was stopped before that (the reason is printed), and 1 if it could not begin."""
    return read_and_run(COMMAND, DataArguments, make_data, arguments, _DESCRIPTION)


async def make_data(args: DataArguments) -> int:
    """Check the arguments, run all steps that are not complete, and return the exit status. Raises RunError
    if a check fails, and if a step cannot use its input."""
    has_judge = args.utility != "correctness" and not args.estimate
    finish_model, finish_search, *finish_judge = begin_checks(
        partial(resolve_model, args),
        partial(check_search, args, {}),
        *([partial(check_judge, args)] if has_judge else []),
    )
    check_played = partial(check_trajectories, args.trajectories)
    check_model = partial(check_served_model, args, finish_model)
    checks = [finish_model, check_model, finish_search, *finish_judge, check_played, *file_checks(args)]
    with all_problems(args, {}, checks):
        check_played()
        for finish in finish_judge:
            finish()
        args = finish_model()
        run_setup, _ = prepare_policy(args)
        budget = run_setup.setup.budget
        if budget.paths > 1 or budget.max_state is not None:
            raise RunError("continuations need rag_r1.agent.paths=1 and no max_state: leave these keys out")
        if args.trajectories is not None:
            check_run(args.trajectories, args.model, run_setup.setup)
        finish_search()
    if args.check_only:
        return await check_only(args, run_setup, args.base_url, args.model)
    return await _run_steps(args, run_setup)


async def _run_steps(args: DataArguments, run_setup: RunSetup) -> int:
    """Run the steps one after the other, and return the exit status, which is 3 if one was stopped."""
    search = retriever_settings(run_setup)
    with CandidateStore(run_setup, search, args.candidates, args.out / "steps" / "candidates") as candidates:
        with ExitStack() as servers:
            run = DataRun(args, run_setup, search, servers)
            trajectories = await trajectories_of(run)
            if trajectories is None:
                return ExitStatus.STOPPED
            cost = await find_candidates(run, candidates, trajectories)
            if cost is None:
                return ExitStatus.STOPPED
            if args.estimate:
                return 0
            uses_gac, uses_lr = args.utility != "relevance", args.utility != "correctness"
            if uses_gac and not await score_correctness(run, candidates, trajectories, cost):
                return ExitStatus.STOPPED
        # The model's server has been stopped at this point, because the judge may need its memory.
        if uses_lr and not await score_relevance(run, candidates, trajectories, cost):
            return ExitStatus.STOPPED
    _select_rows(run)
    return 0


def _select_rows(run: DataRun) -> None:
    """Select the training rows, write them and the summary, and print the counts."""
    args = run.args
    files = ScoreFiles(
        candidates=run.result_path(CANDIDATES),
        relevance=None if args.utility == "correctness" else run.result_path(RELEVANCE),
        correctness=None if args.utility == "relevance" else run.result_path(CORRECTNESS),
    )
    rule = args.rule(args.seed)
    selection = RowSelection(rule)
    write_records(run.result_path(TRAIN), selection.select(files.rounds()))
    run.summary["selection"] = {
        **vars(rule),
        "rounds": selection.rounds,
        "rows": selection.rows,
        "left_out": dict(sorted(selection.excluded.items())),
    }
    write_json(run.result_path(SUMMARY), run.summary, ensure_ascii=False, private=True)
    for line in selection.lines():
        print(line)
    print(f"training rows: {run.result_path(TRAIN)}; text of their passages: {run.result_path(PASSAGES)}")
