"""Reads and checks everything that an evaluation needs before a server is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rag_r1.data.annotations import Annotations, read_answerable, read_supporting, with_supporting
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.rows import QuestionRow
from rag_r1.evaluation.eval_arguments import EvalArguments, PolicyArguments
from rag_r1.evaluation.target import check_tokens
from rag_r1.evaluation.validation_limits import validation_limits
from rag_r1.io.errors import DataError
from rag_r1.protocols import load_protocol
from rag_r1.rollouts.provenance_facts import manifest_facts
from rag_r1.rollouts.requests import read_questions
from rag_r1.rollouts.search_check import FALLBACK_PROTOCOL
from rag_r1.rollouts.session import RunSetup, prepare
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks


def prepare_evaluation(args: EvalArguments) -> RunSetup:
    """Do what `prepare_policy` does. With --card, add the gold passages of --supporting to the rows. Raises
    RunError."""
    run_setup, supporting = prepare_policy(args)
    if args.card and supporting is not None:
        rows = with_supporting(run_setup.questions.rows, supporting)
        run_setup = replace(run_setup, questions=replace(run_setup.questions, rows=rows))
    return run_setup


def prepare_policy(args: PolicyArguments) -> tuple[RunSetup, Annotations[GoldEvidence] | None]:
    """Read the questions, and check the keys, the files and the model's tokenizer. Returns the inputs of the
    run, and the content of --supporting (None without the flag). Raises RunError."""
    answerable, supporting = read_annotations(args)
    check_index(args)
    run_setup = prepare(args, validation_limits(args.protocol), validation=True)
    rows = run_setup.questions.rows
    check_tokens(args, run_setup.tokens)
    _check_annotated_rows(rows, answerable, supporting)
    return run_setup, supporting


def file_checks(args: PolicyArguments) -> list[Callable[[], object]]:
    """Return the checks of the files that only `prepare_policy` reads, for `all_problems`."""
    return [partial(check, args) for check in (read_annotations, check_index, _check_annotations)]


def _check_annotations(args: PolicyArguments) -> None:
    """Raise RunError if --answerable or --supporting is not about the questions, and the errors of reading
    these files."""
    annotations = read_annotations(args)
    if any(item is not None for item in annotations):
        protocol, skip = load_protocol(FALLBACK_PROTOCOL), args.skip_bad_rows
        rows = read_questions(args.questions, protocol, skip_bad_rows=skip, limit=args.limit).rows
        _check_annotated_rows(rows, *annotations)


def _check_annotated_rows(rows: Sequence[QuestionRow], *annotations: Annotations[Any] | None) -> None:
    """Raise RunError for annotations that are not about these rows."""
    try:
        for item in annotations:
            if item is not None:
                item.check_rows(rows)
    except DataError as error:
        raise RunError(str(error)) from error


def check_index(args: PolicyArguments) -> None:
    """Raise RunError for an --index without a readable manifest."""
    if args.index is not None:
        manifest_facts(args.index)


def read_annotations(
    args: PolicyArguments,
) -> tuple[Annotations[bool] | None, Annotations[GoldEvidence] | None]:
    """Return the content of --answerable and of --supporting, None for a missing flag. Raises RunError for
    bad rows that are not to be skipped, and StartError with all problems of the files."""
    bad = BadRows()
    with StartChecks() as checks:
        answerable = checks.run(read_answerable, args.answerable, bad) if args.answerable else None
        supporting = checks.run(read_supporting, args.supporting, bad) if args.supporting else None
        if bad.count and not args.skip_bad_rows:
            raise RunError(bad.refusal())
    return answerable, supporting
