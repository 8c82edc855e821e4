"""Runs one condition of an evaluation: plays its episodes, and writes its records and its report.

`run_condition` plays one condition (baselines.py: the agent, or a baseline) into a folder. It can be killed
at any time; the next call continues where it was (rag_r1/rollouts/runner.py). The finished folder has

    trajectories/records.jsonl                    a record of each episode, in the order of the questions
    provenance.json                               everything that the result depends on
    report.json, report.md, report_*.png          the figures
    journal/, judge/                              the state with which a run is resumed
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.rows import QuestionRow
from rag_r1.evaluation.baselines import Condition
from rag_r1.evaluation.eval_arguments import PolicyArguments
from rag_r1.evaluation.judge import JUDGE_FOLDER, JudgeVerdicts, description, judge
from rag_r1.evaluation.provenance import write_provenance
from rag_r1.evaluation.report.report import REPORT_MD, WRONG_RUN, write_report
from rag_r1.evaluation.report.run_table import read_run
from rag_r1.evaluation.report.summary import headline
from rag_r1.evaluation.validation_limits import validation_limits
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.io.errors import error_text
from rag_r1.io.terminal_text import terminal_lines
from rag_r1.options.command_exit import ExitStatus
from rag_r1.rollouts.checks import check_known_settings
from rag_r1.rollouts.provenance import Provenance, protocol_part
from rag_r1.rollouts.requests import check_prompt_limit, make_request
from rag_r1.rollouts.session import RunSession, RunSetup, open_session, settings_of, usage_line
from rag_r1.runs.cancel_token import stop_message
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import EpisodeOutcome, check_settings

#: The folder of the records, in a run's folder.
TRAJECTORIES = "trajectories"


async def run_condition(
    args: PolicyArguments, run_setup: RunSetup, condition: Condition, out: Path
) -> ExitStatus:
    """Play all questions of a condition into the folder `out`, write its report and print its main figures.

    A run that was interrupted is resumed. `args.base_url` must name the model's server (`serve_model` in
    target.py starts one). Returns DONE, FAILED if all episodes have failed, or STOPPED if the run or its
    judge was stopped before its end. Raises RunError, OSError if a file cannot be read or written, and
    RewardError if a reward term cannot judge.
    """
    rows = _rows(run_setup, condition)
    first_setup = _setup_of(condition, rows[0])
    settings = _settings(args, run_setup, condition, first_setup)
    assert args.base_url is not None  # set by `serve_model`
    async with open_session(
        args, run_setup, args.base_url, args.model, settings, out=out, searches=condition.searches
    ) as session:
        write_provenance(
            args,
            session,
            args.model,
            condition=condition.name,
            setup=first_setup,
            searches=condition.searches,
            index=args.index,
            sampling=args.model_dump(include={"temperature", "top_p", "samples"}),
            judge=description(args),
        )
        samples = range(args.samples)
        jobs = (partial(_play, session, condition, row, sample, args) for row in rows for sample in samples)
        results = await session.runner.run(jobs, len(rows) * args.samples, "question")
        if session.stop.reason is not None:
            print(usage_line(session))
            print(stop_message(session.stop.reason, f"{results.count(None)} episodes are missing"))
            return ExitStatus.STOPPED
        outcomes = [outcome for outcome in results if outcome is not None]
        verdicts = await _write_records(args, session, outcomes, out)
    report = _write_report(args, out)
    _print_summary(report, session, condition, outcomes, verdicts)
    print(f"report: {out / REPORT_MD}")
    if verdicts is not None and verdicts.stopped is not None:
        return ExitStatus.STOPPED
    return ExitStatus.FAILED if all(outcome.failed for outcome in outcomes) else ExitStatus.DONE


def check_condition(args: PolicyArguments, run_setup: RunSetup, condition: Condition, out: Path) -> None:
    """Raise RunError if a setting of the run in `out` has changed, if there is one, or if no question can be
    asked under the condition."""
    settings = _settings(args, run_setup, condition, _setup_of(condition, _rows(run_setup, condition)[0]))
    check_settings(out, {**settings, "model": args.model}, is_complete=False)


def check_questions(run_setup: RunSetup, condition: Condition) -> None:
    """Raise RunError if no question can be asked under the condition, or if all prompts are too long."""
    rows = _rows(run_setup, condition)
    check_prompt_limit(rows, _setup_of(condition, rows[0]))


def check_known_condition(args: PolicyArguments, name: str) -> None:
    """Call `check_known_settings` for the run of the condition `name` in --out. Raises RunError if a setting
    has changed."""
    sampling = {"samples": args.samples, "temperature": args.temperature}
    model = {} if args.base_url is None else {"model": args.model}
    limits = validation_limits(args.protocol)
    check_known_settings(args, limits, validation=True, condition=name, **sampling, **model)


def _rows(run_setup: RunSetup, condition: Condition) -> list[QuestionRow]:
    """Return the questions that are asked under a condition. Raises RunError if there are none."""
    rows = [row for row in run_setup.questions.rows if condition.applies(row)]
    if not rows:
        raise RunError(f"no question can be asked under the condition {condition.name}")
    return rows


def _settings(
    args: PolicyArguments, run_setup: RunSetup, condition: Condition, first_setup: AgentSetup
) -> dict[str, Any]:
    """Return the settings of a condition's run. `first_setup` is the agent of its first question."""
    return settings_of(
        args,
        run_setup,
        "eval",
        condition=condition.name,
        condition_options=dict(condition.options),
        prompt_sha256=protocol_part(first_setup.protocol).prompt_sha256,
        samples=args.samples,
        temperature=args.temperature,
        budget=vars(first_setup.budget),
    )


async def _play(
    session: RunSession, condition: Condition, row: QuestionRow, sample: int, args: PolicyArguments
) -> EpisodeOutcome:
    """Play episode number `sample` of a question under a condition."""
    setup = _setup_of(condition, row)
    request = make_request(
        row,
        setup.protocol,
        sample=sample,
        seed=args.seed,
        temperature=args.temperature,
        own_prompt=setup.own_prompt,
        setup=setup,
        search_first=condition.search_first,
        metadata=row.metadata,
    )
    return await session.runner.play(request)


def _setup_of(condition: Condition, row: QuestionRow) -> AgentSetup:
    """Return the agent of a question. Raises RunError if the condition cannot ask it."""
    try:
        return condition.setup(row)
    except ValueError as error:
        raise RunError(f"{row.id} cannot be asked under the condition {condition.name}: {error}") from error


async def _write_records(
    args: PolicyArguments, session: RunSession, outcomes: Sequence[EpisodeOutcome], out: Path
) -> JudgeVerdicts | None:
    """Write the records in the order of the questions. If there is a judge, its verdicts are added to the
    records and returned. Raises RunError or OSError."""
    ids = [outcome.id for outcome in outcomes]
    verdicts = None
    if args.judge_url is not None:
        verdicts = await judge(args, session.folder.records(ids), out / JUDGE_FOLDER, args)
    folder = out / TRAJECTORIES
    folder.mkdir(mode=0o700, exist_ok=True)
    records = session.folder.records(ids)
    if verdicts is not None:
        records = map(verdicts.add_to_record, records)
    write_json_lines(folder / "records.jsonl", records, private=True)
    return verdicts


def _write_report(args: PolicyArguments, out: Path) -> dict[str, Any]:
    """Write the report of the finished run, and return the content of report.json. Raises RunError."""
    try:
        card = Provenance.read(out)
        table = read_run(
            out,
            mask=card.mask if card else None,
            answerable=args.answerable,
            supporting=args.supporting,
            skip_bad_rows=args.skip_bad_rows,
        )
        return write_report(table, card, out)
    except WRONG_RUN as error:
        raise RunError(f"the records are complete, but not the report: {error_text(error)}") from error


def _print_summary(
    report: Mapping[str, Any],
    session: RunSession,
    condition: Condition,
    outcomes: Sequence[EpisodeOutcome],
    verdicts: JudgeVerdicts | None,
) -> None:
    """Print the main figures, the failures, the judge's verdicts, the use of the endpoint and, to stderr, the
    rows that were left out."""
    for line in headline(report, condition.name):
        print(line)
    if failed := sum(outcome.failed for outcome in outcomes):
        retried = sum(map(session.runner.is_open, outcomes))
        print(
            f"failed (the endpoint or a search), and not in the figures: {failed}"
            + (f"; the same command, run again, asks {retried} of them again" if retried else "")
        )
    if verdicts is not None:
        print(verdicts.summary())
        if verdicts.stopped is not None:
            print(stop_message(verdicts.stopped, "the judge has not seen all answers"))
    print(usage_line(session))
    for line in session.run_setup.questions.bad.left_out():
        print(terminal_lines(line), file=sys.stderr)
