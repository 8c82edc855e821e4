"""`rag-r1 filter`: replays questions, and keeps those of suitable difficulty for reinforcement learning.

Each question is played once (sample 0). If the answer is wrong, it is played again, up to `--replays` times,
until an answer is right. difficulty_filter.py decides which questions are kept. If a rollout fails because of
the infrastructure, it is repeated when the command is run again, and left out once `--tries` are used up. The
selection therefore does not depend on when something failed. The command writes

    train.parquet, test.parquet    the kept rows. They are unchanged, except for `extra_info.split` in
                                   test.parquet, on which the trainer's limits depend
    rollouts.jsonl                 rollouts of each question, for data_process/r1_searcher.py --difficulty
    histogram.png, summary.json    the counts that are printed
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from rag_r1.data.files.qa_parquet import write_split_files
from rag_r1.data.row_schema import metadata_types
from rag_r1.data.rows import QuestionRow
from rag_r1.evaluation.provenance import write_provenance
from rag_r1.io.atomic_files import write_json, write_json_lines
from rag_r1.options.command_exit import ExitStatus
from rag_r1.options.command_line import Below1, From0, Positive, Share, argument
from rag_r1.options.server_address import Address
from rag_r1.rollouts.agent_arguments import SAMPLING
from rag_r1.rollouts.arguments import RolloutArguments
from rag_r1.rollouts.checks import all_problems, check_known_settings, check_servers
from rag_r1.rollouts.command_run import read_and_run
from rag_r1.rollouts.requests import EpisodeRequest, check_prompt_limit, make_request
from rag_r1.rollouts.runner import EpisodeRunner
from rag_r1.rollouts.session import (
    RunSession,
    RunSetup,
    check_only,
    open_session,
    prepare,
    settings_of,
    usage_line,
)
from rag_r1.runs.cancel_token import stop_message
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import check_settings
from rag_r1.runs.start_checks import StartChecks
from rag_r1.sft.difficulty_filter import QuestionRollouts, filter_counts, is_kept, rollout_lines, split
from rag_r1.sft.plots import as_text, draw

COMMAND = "rag-r1 filter"
_DESCRIPTION = """\
Replay questions with a checkpoint behind vLLM (or any endpoint), and keep those that are worth training on:
the ones that are right in a later try but not in the first, and a share of those that are right at once. Run
again, the same command goes on where it was interrupted, and asks nothing twice.

example:
  vllm serve outputs/sft/model --port 8001
  rag-r1 filter --questions data/mq/train.parquet --base-url http://127.0.0.1:8001/v1 \\
      --model outputs/sft/model --tokenizer outputs/sft/model --retriever-url http://127.0.0.1:8000 \\
      --protocol rag_r1_mq --out data/filtered
"""
#: Settings that differ from those of other rollouts: the paper allows up to ten retrievals.
_DEFAULTS = {"agent": {"max_turns": 10}}


class FilterArguments(RolloutArguments):
    """The arguments of `rag-r1 filter`."""

    writes: ClassVar[tuple[str, ...]] = ("train.parquet", "test.parquet", "rollouts.jsonl", "summary.json")

    base_url: Address = argument("address of the endpoint, up to and with /v1", "URL", old="url")
    model: str = argument("name of the model at the endpoint", "NAME")
    replays: Positive = argument("further tries for a question whose first answer is wrong", "N", default=10)
    temperature: From0 = argument("temperature of the replays", "T", default=1.2, rare=SAMPLING)
    first_temperature: From0 = argument("temperature of the first try", "T", default=1.0, rare=SAMPLING)
    share: Share = argument("share to keep of the questions that are right at the first try", default=0.25)
    validation: Below1 = argument("share of the kept rows that test.parquet gets", default=0.05)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 filter` and return its exit status.

    The status is 0 when the files are written and have questions, 3 if the run was stopped early (the reason
    is printed), and 1 if it could not begin or no question is kept.
    """
    return read_and_run(COMMAND, FilterArguments, filter_questions, arguments, _DESCRIPTION)


async def filter_questions(args: FilterArguments) -> int:
    """Play the missing rollouts, and write the files; returns the exit status.

    Raises RunError if a check fails, if the run cannot be opened, or if no question is kept.
    """
    server_check = partial(check_servers, args, _DEFAULTS, args.base_url, args.model)
    sampling = args.model_dump(include={"replays", "temperature", "first_temperature"})
    settings_check = partial(check_known_settings, args, _DEFAULTS, **sampling, model=args.model)
    with all_problems(args, _DEFAULTS, [server_check, settings_check]):
        run_setup = prepare(args, _DEFAULTS)
        with StartChecks() as checks:
            # All kept rows are written into one file.
            checks.run(metadata_types, [row.metadata for row in run_setup.questions.rows])
            checks.run(check_prompt_limit, run_setup.questions.rows, run_setup.setup)
        settings_check()
    settings = settings_of(args, run_setup, "filter", **sampling)
    check_settings(args.out, {**settings, "model": args.model}, is_complete=False)
    if args.temperature == 0 and args.replays > 1:
        print("warning: replays at --temperature 0 are mostly equal: raise it, or play one", file=sys.stderr)
    if args.check_only:
        return await check_only(args, run_setup, args.base_url, args.model)
    rows = run_setup.questions.rows
    async with open_session(args, run_setup, args.base_url, args.model, settings) as run:
        write_provenance(args, run, args.model, sampling={**sampling, "top_p": args.top_p})
        jobs = (partial(replay_question, run.runner, row, requests_of(row, run_setup, args)) for row in rows)
        results = await run.runner.run(jobs, len(rows), "question")
        for line in run_setup.questions.bad.left_out():
            print(line, file=sys.stderr)
        if run.stop.reason is not None:
            print(usage_line(run))
            print(stop_message(run.stop.reason, f"{results.count(None)} questions are missing"))
            return ExitStatus.STOPPED
        _write_results(args, run, [question for question in results if question is not None], settings)
    return 0


def requests_of(row: QuestionRow, run_setup: RunSetup, args: FilterArguments) -> list[EpisodeRequest]:
    """Make the requests for the first try of a question and for all its replays."""
    return [
        make_request(
            row,
            run_setup.config.protocol,
            sample=sample,
            seed=args.seed,
            temperature=args.temperature if sample else args.first_temperature,
            own_prompt=run_setup.config.own_prompt,
        )
        for sample in range(args.replays + 1)
    ]


async def replay_question(
    runner: EpisodeRunner, row: QuestionRow, requests: Sequence[EpisodeRequest]
) -> QuestionRollouts:
    """Play the episodes of a question one after the other, until one is right.

    If an episode fails and may be repeated by another run of the command, the question stays undecided.
    """
    was_right: list[bool] = []
    for request in requests:
        outcome = await runner.play(request)
        if runner.is_open(outcome):
            return QuestionRollouts(row, tuple(was_right), decided=False)
        if outcome.right is not None:
            was_right.append(outcome.right)
        if outcome.right:
            break
    return QuestionRollouts(row, tuple(was_right))


def _write_results(
    args: FilterArguments, run: RunSession, questions: Sequence[QuestionRollouts], settings: dict[str, Any]
) -> None:
    """Write the files, and print the counts. Afterwards raises RunError if no question is kept."""
    counts = filter_counts(questions, args.share, args.seed)
    kept_rows = [question.row for question in questions if is_kept(question, args.share, args.seed)]
    train, test = split(kept_rows, args.validation, args.seed)
    write_json_lines(args.out / "rollouts.jsonl", rollout_lines(questions), private=True)
    test_rows = [replace(row, split="test") for row in test]
    write_split_files(args.out, [("train", train), ("test", test_rows)])
    summary = {
        "settings": {**settings, "model": args.model, "answers": run.answers},
        "share": args.share,
        "validation": args.validation,
        **counts,
        "written": {"train": len(train), "test": len(test)},
        "usage": vars(run.spending.usage),
        "cost": run.spending.cost,
    }
    write_json(args.out / "summary.json", summary, ensure_ascii=False, private=True)
    print(as_text(counts["histogram"]))
    draw(counts["histogram"], args.out / "histogram.png")
    _print_counts(args, run, counts, summary["written"])
    if not kept_rows:
        raise RunError(
            f"no question of {counts['questions']} is kept: train.parquet is empty. Look at the records in "
            f"{args.out / 'journal'}: does the model keep to the protocol?"
        )


def _print_counts(
    args: FilterArguments, run: RunSession, counts: dict[str, Any], written: dict[str, int]
) -> None:
    """Print how many questions are kept, and why the others are not."""
    classes = ", ".join(f"{name} {count}" for name, count in counts["classes"].items())
    print(f"kept {counts['kept']} of {counts['questions']} questions:")
    print(f"  {counts['right_later']:8} wrong at first, right later: all kept")
    print(f"  {counts['right_at_first']:8} right at first: {counts['right_at_first_kept']} kept")
    print(f"  {counts['never_right']:8} never right")
    if counts["never_judged"]:
        print(f"  {counts['never_judged']:8} whose rollouts all failed (the endpoint or a search)")
    if counts["undecided"]:
        print(f"  {counts['undecided']:8} undecided: the same command plays their failed rollouts again")
    print(f"R1-Searcher's classes: {classes}")
    print(usage_line(run))
    for name, count in written.items():
        print(f"{args.out / name}.parquet: {count} questions")


if __name__ == "__main__":
    sys.exit(main())
