"""`rag-r1 retriever data`: makes training data for a retriever from the agent's searches (Agentic-R).

    trajectories   the agent plays the questions, greedily: an evaluation             trajectories/
    candidates     the best passages of the current retriever for each search         candidates.jsonl
    correctness    with one candidate alone, does the agent answer rightly? (GAC)     correctness.jsonl
    relevance      a judge's, or a rule's, score of each candidate (LR)               relevance.jsonl
    selection      positives and negatives by these two                               train.jsonl

`passages.jsonl` has the text of all candidates, `sub_answers.jsonl` what the judge took each search to be
for, and `summary.json` the figures. Each step keeps what it has found out in `steps/` (journal.py), so the
command can be killed at any moment: run again, it goes on, asks nothing twice, and ends with the same files.
What is random depends on the seed and the round alone. A failed search, continuation or request of the judge
leaves its round out until the next start has tried it again; the rounds that are complete are written all the
same.

The selection reads the written scores, so another rule needs no new ones: run the same command with it, or
`rag-r1 retriever select`, which needs no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from rag_r1.evaluation.target import check_judge, resolve_model
from rag_r1.evaluation.validation_limits import validation_limits
from rag_r1.io.atomic_files import write_json
from rag_r1.options.command_exit import ExitStatus
from rag_r1.retriever.data.arguments import DataArguments
from rag_r1.retriever.data.candidates import CandidateStore, retriever_settings
from rag_r1.retriever.data.steps import (
    DataRun,
    find_candidates,
    score_correctness,
    score_relevance,
    trajectories_of,
)
from rag_r1.retriever.data.trajectories import check_trajectories
from rag_r1.retriever.records import CANDIDATES, CORRECTNESS, PASSAGES, RELEVANCE, TRAIN
from rag_r1.retriever.selection.command import write_rows
from rag_r1.retriever.selection.scores import ScoreFiles
from rag_r1.rollouts.checks import all_problems, begin_checks, check_search
from rag_r1.rollouts.command_run import read_and_run
from rag_r1.rollouts.session import RunSetup, check_only, prepare
from rag_r1.runs.errors import RunError

COMMAND = "rag-r1 retriever data"
_DESCRIPTION = """\
Make training data for a retriever: which passages help the agent? The agent plays questions; for each of its
searches the retriever's best passages are tried out one by one, and a judge scores them. Run again, the same
command goes on where it was interrupted, and asks nothing twice.

example:
  rag-r1 retriever data --model outputs/agent --questions data/hotpotqa/train.parquet --protocol search_r1 \\
      --retriever-url http://127.0.0.1:8000 --judge-url http://127.0.0.1:8001/v1 --judge-model judge \\
      --out data/agentic_r/round1 --estimate

With --estimate it ends when it is known what the scores will cost; without, it goes on to train.jsonl.
"""
SUMMARY = "summary.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when the rows are written, 3 if the run was stopped before (the reason is printed), 1 if it
    could not begin."""
    return read_and_run(COMMAND, DataArguments, make_data, arguments, _DESCRIPTION)


async def make_data(args: DataArguments) -> int:
    """Take all steps that are not done; returns the exit status. Raises RunError."""
    has_judge = args.utility != "correctness" and not args.estimate
    model, search, *judge = begin_checks(
        partial(resolve_model, args),
        partial(check_search, args, {}),
        *([partial(check_judge, args)] if has_judge else []),
    )
    played = partial(check_trajectories, args.trajectories)
    with all_problems(args, {}, [model, search, *judge, played]):
        played()
        for check in judge:
            check()
        args = model()
        ready = prepare(args, validation_limits(args.protocol), validation=True)
        search()
    if args.check_only:
        return await check_only(args, ready, args.base_url, args.model)
    budget = ready.setup.budget
    if budget.paths > 1 or budget.max_state is not None:
        raise RunError(
            "rag_r1.agent.paths above 1, and max_state, do not go with continuations: leave them out"
        )
    return await _take_steps(args, ready)


async def _take_steps(args: DataArguments, ready: RunSetup) -> int:
    """The steps, as `make_data`; 3 if one was stopped."""
    search = retriever_settings(ready)
    with CandidateStore(ready, search, args.candidates, args.out / "steps" / "candidates") as candidates:
        with ExitStack() as opened:
            run = DataRun(args, ready, search, opened)
            trajectories = await trajectories_of(run)
            if trajectories is None:
                return ExitStatus.STOPPED
            cost = await find_candidates(run, candidates, trajectories)
            if cost is None:
                return ExitStatus.STOPPED
            if args.estimate:
                return 0
            inputs = candidates, trajectories, cost
            if args.utility != "relevance" and not await score_correctness(run, *inputs):
                return ExitStatus.STOPPED
        # Here the model's server has ended: the judge may need its memory.
        if args.utility != "correctness" and not await score_relevance(run, *inputs):
            return ExitStatus.STOPPED
    _select(run)
    return 0


def _select(run: DataRun) -> None:
    """Write the rows and the summary."""
    args, uses = run.args, run.args.utility
    files = ScoreFiles(
        candidates=run.out(CANDIDATES),
        relevance=None if uses == "correctness" else run.out(RELEVANCE),
        correctness=None if uses == "relevance" else run.out(CORRECTNESS),
    )
    rule = args.rule(args.seed)
    selection = write_rows(files, rule, run.out(TRAIN))
    run.summary["selection"] = {
        **vars(rule),
        "rounds": selection.rounds,
        "rows": selection.rows,
        "left_out": dict(sorted(selection.excluded.items())),
    }
    write_json(run.out(SUMMARY), run.summary, ensure_ascii=False, private=True)
    for line in selection.lines():
        print(line)
    print(f"training rows: {run.out(TRAIN)}; text of their passages: {run.out(PASSAGES)}")
