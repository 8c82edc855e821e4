"""Runs one condition of an evaluation: its episodes, its records, its report.

`run_condition` plays one condition (baselines.py: the agent, or a baseline) into a folder, and can be killed
and started again at any time; rag_r1/rollouts/runner.py says how. The folder then has

    trajectories/records.jsonl                    a record of each episode, in the order of the questions
    provenance.json                               what the result depends on
    report.json, report.md, report_*.png          the figures
    journal/, judge/                              what a resume needs
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.annotations import Annotations, read_answerable, read_supporting, with_supporting
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.rows import QuestionRow
from rag_r1.evaluation.baselines import Condition
from rag_r1.evaluation.eval_arguments import EvalArguments, PolicyArguments
from rag_r1.evaluation.judge import JUDGE_FOLDER, JudgeVerdicts, description, judge
from rag_r1.evaluation.provenance import write_provenance
from rag_r1.evaluation.report.report import REPORT_MD, WRONG_RUN, make_report
from rag_r1.evaluation.report.summary import headline, stop_message
from rag_r1.evaluation.target import check_tokens
from rag_r1.evaluation.validation_limits import validation_limits
from rag_r1.io.atomic_files import error_text, write_json_lines
from rag_r1.io.errors import DataError
from rag_r1.rollouts.provenance import protocol_part
from rag_r1.rollouts.provenance_facts import manifest_facts
from rag_r1.rollouts.requests import make_request
from rag_r1.rollouts.session import RunSession, RunSetup, open_session, prepare, settings_of, usage_line
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import EpisodeOutcome
from rag_r1.runs.start_checks import StartChecks

TRAJECTORIES = "trajectories"


def prepare_evaluation(args: EvalArguments) -> RunSetup:
    """Read and check everything that needs no server. Raises RunError."""
    answerable, supporting = read_annotations(args)
    if args.index is not None:
        manifest_facts(args.index)
    ready = prepare(args, validation_limits(args.protocol), validation=True)
    rows = ready.questions.rows
    check_tokens(args, ready.tokens)
    try:
        for annotations in (answerable, supporting):
            if annotations is not None:
                annotations.check_rows(rows)
        if args.card and supporting is not None:
            rows = with_supporting(rows, supporting)
            ready = replace(ready, questions=replace(ready.questions, rows=rows))
    except DataError as error:
        raise RunError(str(error)) from error
    return ready


def read_annotations(
    args: EvalArguments,
) -> tuple[Annotations[bool] | None, Annotations[GoldEvidence] | None]:
    """What --answerable and --supporting say; None for a flag that is absent. Raises RunError."""
    bad = BadRows()
    with StartChecks() as checks:
        answerable = checks.run(read_answerable, args.answerable, bad) if args.answerable else None
        supporting = checks.run(read_supporting, args.supporting, bad) if args.supporting else None
        if bad.count and not args.skip_bad_rows:
            raise RunError(bad.refusal())
    return answerable, supporting


async def run_condition(args: PolicyArguments, ready: RunSetup, condition: Condition, out: Path) -> int:
    """Play all questions of a condition into the folder `out`, and write its report; returns 0, 1 if all
    of them have failed, or 3 if the run was stopped before its end.

    `args.base_url` is the server (target.py). Raises RunError; a run that was interrupted goes on.
    """
    rows = [row for row in ready.questions.rows if condition.applies(row)]
    if not rows:
        raise RunError(f"no question can be asked under the condition {condition.name}")
    first = _setup_of(condition, rows[0])
    settings = _settings(args, ready, condition, first)
    assert args.base_url is not None
    async with open_session(
        args, ready, args.base_url, args.model, settings, out=out, searches=condition.searches
    ) as run:
        write_provenance(
            args,
            run,
            args.model,
            condition=condition.name,
            setup=first,
            searches=condition.searches,
            index=args.index,
            sampling=args.model_dump(include={"temperature", "top_p", "samples"}),
            judge=description(args),
        )
        samples = range(args.samples)
        jobs = (partial(_play, run, condition, row, sample, args) for row in rows for sample in samples)
        results = await run.runner.run(jobs, len(rows) * args.samples, "question")
        if run.stop.reason is not None:
            print(usage_line(run))
            print(stop_message(run.stop.reason, f"{results.count(None)} episodes are missing"))
            return 3
        outcomes = [outcome for outcome in results if outcome is not None]
        verdicts = await _write_records(args, run, outcomes, out)
    _report(args, run, condition, outcomes, verdicts, out)
    if verdicts is not None and verdicts.stopped is not None:
        return 3
    return 1 if all(outcome.failed for outcome in outcomes) else 0


def _settings(
    args: PolicyArguments, ready: RunSetup, condition: Condition, first: AgentSetup
) -> dict[str, Any]:
    """The settings of a condition's run; `first`: the agent of its first question."""
    settings = settings_of(
        args,
        ready,
        "eval",
        condition=condition.name,
        condition_options=dict(condition.options),
        prompt_sha256=protocol_part(first.protocol).prompt_sha256,
        samples=args.samples,
        temperature=args.temperature,
    )
    return {**settings, "budget": vars(first.budget)}


async def _play(
    run: RunSession, condition: Condition, row: QuestionRow, sample: int, args: PolicyArguments
) -> EpisodeOutcome:
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
    return await run.runner.play(request)


def _setup_of(condition: Condition, row: QuestionRow) -> AgentSetup:
    try:
        return condition.setup(row)
    except ValueError as error:
        raise RunError(f"{row.id} cannot be asked under the condition {condition.name}: {error}") from error


async def _write_records(
    args: PolicyArguments, run: RunSession, outcomes: Sequence[EpisodeOutcome], out: Path
) -> JudgeVerdicts | None:
    """Write the records in the order of the questions, with the judge's term if there is a judge."""
    ids = [outcome.id for outcome in outcomes]
    verdicts = None
    if args.judge_url is not None:
        connection = {key: getattr(args, key) for key in ("retries", "timeout_s", "backoff_s", "trust_env")}
        verdicts = await judge(args, run.folder.records(ids), out / JUDGE_FOLDER, **connection)
    folder = out / TRAJECTORIES
    folder.mkdir(mode=0o700, exist_ok=True)
    records = run.folder.records(ids)
    if verdicts is not None:
        records = map(verdicts.add_to_record, records)
    write_json_lines(folder / "records.jsonl", records, private=True)
    return verdicts


def _report(
    args: PolicyArguments,
    run: RunSession,
    condition: Condition,
    outcomes: Sequence[EpisodeOutcome],
    verdicts: JudgeVerdicts | None,
    out: Path,
) -> None:
    """Write the report and print its main figures."""
    files = {name: getattr(args, name) for name in ("answerable", "supporting", "skip_bad_rows")}
    try:
        report = make_report(out, **files)
    except WRONG_RUN as error:
        raise RunError(f"the records are complete, but not the report: {error_text(error)}") from error
    for line in headline(report, condition.name):
        print(line)
    if failed := sum(outcome.failed for outcome in outcomes):
        retried = sum(map(run.runner.is_open, outcomes))
        print(
            f"failed (the endpoint or a search), and not in the figures: {failed}"
            + (f"; the same command, run again, asks {retried} of them again" if retried else "")
        )
    if verdicts is not None:
        print(verdicts.summary())
        if verdicts.stopped is not None:
            print(stop_message(verdicts.stopped, "the judge has not seen all answers"))
    print(usage_line(run))
    for line in run.ready.questions.bad.left_out():
        print(line, file=sys.stderr)
    print(f"report: {out / REPORT_MD}")
