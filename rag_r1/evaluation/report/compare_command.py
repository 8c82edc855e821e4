"""Compares finished runs on the questions that all of them share, with differences and tests.

Runs are compared only if their cards agree in all keys but those that `--differs` names. Otherwise the effect
of another corpus, prompt or budget could be mistaken for that of the method.

    rag-r1 eval compare outputs/base outputs/trained --differs model
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator
from pydantic_settings import CliPositionalArg

from rag_r1.data.files.bad_rows import HELP, BadRows
from rag_r1.data.files.row_files import short_text
from rag_r1.evaluation.report.bootstrap import DEFAULT_BOOTSTRAP, Bootstrap
from rag_r1.evaluation.report.comparison import SharedQuestions, compare_tables, shared_questions
from rag_r1.evaluation.report.report import WRONG_RUN
from rag_r1.evaluation.report.run_table import RunTable, has_records, no_records, read_run
from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, From0Count, Positive, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.options.suggestions import did_you_mean
from rag_r1.rewards.normalise import NormaliserName
from rag_r1.rollouts.provenance import Provenance, find_differences
from rag_r1.rollouts.provenance_facts import short_names
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import PROVENANCE
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks

#: The value of `--differs` with which runs without a card can be compared.
NO_CARD = "card"
_EPILOG = """\
KEY is a key of the cards, or a section: `model` stands for `model.name` and `model.sha256`. Repeat the flag,
or put commas between the keys. `--differs card` also compares runs that have no card.

example:
  rag-r1 eval compare outputs/base outputs/grpo --differs model --out outputs/base_grpo
"""


def compare(
    runs: Sequence[Path],
    differs: Sequence[str] = (),
    normaliser: NormaliserName = "squad",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    *,
    skip_bad_rows: bool = False,
) -> dict[str, Any]:
    """Return the content of compare.json for two or more run folders, the first of which is the baseline.

    `differs` are keys of the cards that may differ. Raises one of WRONG_RUN, which is RunError if the runs
    cannot be compared.
    """
    return compare_runs(read_runs(runs, differs, skip_bad_rows=skip_bad_rows), normaliser, bootstrap)


class ComparableRuns(NamedTuple):
    """Runs that can be compared. Lists have one entry per run."""

    names: list[str]
    cards: list[Provenance | None]
    tables: list[RunTable]
    #: The questions that the runs share.
    questions: SharedQuestions
    #: The intended differences of the cards: the value of each run, by key.
    differing: dict[str, list[Any]]


def compare_runs(runs: ComparableRuns, normaliser: NormaliserName, bootstrap: Bootstrap) -> dict[str, Any]:
    """Return the content of compare.json for runs that have been read."""
    facts = next((card.flat() for card in runs.cards if card is not None), {})
    return {
        **compare_tables(runs.names, runs.tables, runs.questions, normaliser, bootstrap),
        "differing": runs.differing,
        "unknown": [key for key, value in facts.items() if value is None and key not in runs.differing],
    }


def read_runs(
    runs: Sequence[Path], differs: Sequence[str], *, skip_bad_rows: bool, step: int | None = None
) -> ComparableRuns:
    """Read the runs; of trainings, `step` selects the validation at one step. Raises StartError with all
    problems of the runs and their cards, and RunError if these are right, but the questions are not (see
    `_find_shared`)."""
    with StartChecks() as checks:
        if missing := [str(run) for run in runs if not run.exists()]:
            message = f"there is no run in {', '.join(missing)}: give the folders of finished runs"
            checks.add(RunError(message))
        empty = [run for run in runs if run.exists() and not has_records(run)]
        for run in empty:
            checks.add(no_records(run))
        folders = [run for run in runs if run.exists() and run not in empty]
        problems_so_far = len(checks.problems)
        cards = [checks.run(Provenance.read, run) for run in folders]
        differing = None
        if len(checks.problems) == problems_so_far:  # all cards could be read
            differing = checks.run(intended_differences, folders, cards, differs)
        tables = [
            checks.run(
                read_run, run, mask=card.mask if card else None, step=step, skip_bad_rows=skip_bad_rows
            )
            for run, card in zip(folders, cards, strict=True)
        ]
    readable = [table for table in tables if table is not None]
    assert differing is not None  # or the checks have raised
    questions = _find_shared(readable, skip_bad_rows=skip_bad_rows)
    return ComparableRuns(run_names(runs), cards, readable, questions, differing)


def _find_shared(tables: Sequence[RunTable], *, skip_bad_rows: bool) -> SharedQuestions:
    """Return the questions that all runs share. Raises RunError if there are none, or if runs use the same
    id for different questions and `skip_bad_rows` is false."""
    questions = shared_questions(tables)
    if questions.mismatched and not skip_bad_rows:
        bad = BadRows()
        for source, question_id in questions.mismatched:
            bad.add(f"{source}, {question_id}", "another question, or other gold answers, under the same id")
        raise RunError(f"the runs have different data: {bad.refusal()}")
    if not questions.count:
        raise RunError(
            "no question has an answer in all of these runs: compare runs on the same data (their questions' "
            "ids must be equal)"
        )
    return questions


def intended_differences(
    runs: Sequence[Path], cards: Sequence[Provenance | None], differs: Sequence[str]
) -> dict[str, list[Any]]:
    """Return the keys in which the cards differ, with one value per run, None for a run without a card.
    Raises RunError if a key is not covered by `differs`, or if `differs` has a name that is not a key."""
    names = [name.strip() for text in differs for name in text.split(",") if name.strip()]
    readable = [card for card in cards if card is not None]
    _check_keys(readable, names)
    missing = [str(run) for run, card in zip(runs, cards, strict=True) if card is None]
    if missing and NO_CARD not in names:
        raise RunError(
            f"{', '.join(missing)}: no {PROVENANCE}, so it is not known what the result depends on; play the "
            f"run again, or compare without it: --differs {NO_CARD}"
        )
    differences = find_differences(readable)
    intended = tuple(f"{name}." for name in names)
    unintended = {key: values for key, values in differences.items() if not f"{key}.".startswith(intended)}
    if unintended:
        lines = [f"  {key}: {' | '.join(map(_value_text, values))}" for key, values in unintended.items()]
        sections = dict.fromkeys(key.split(".")[0] for key in unintended)
        flags = " ".join(f"--differs {name}" for name in sections)
        beginning = "the runs' cards differ, and so results may differ for these reasons:"
        remedy = f"if that is what is compared, name it: {flags}"
        raise RunError("\n".join([beginning, *lines, remedy]))
    flat = [{} if card is None else card.flat() for card in cards]
    return {key: [values.get(key) for values in flat] for key in differences}


def run_names(runs: Sequence[Path]) -> list[str]:
    """Return short names of the folders (rag_r1/rollouts/provenance_facts.py), which are numbered if a
    folder is given twice."""
    names = short_names(runs)
    if len(set(names)) == len(names):
        return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def _check_keys(cards: Sequence[Provenance], names: Sequence[str]) -> None:
    """Raise RunError for a name in --differs that is neither a key nor a section of the cards."""
    keys = {key for card in cards for key in card.flat()} | set(Provenance.model_fields)
    sections = {".".join(key.split(".")[:depth]) for key in keys for depth in range(1, key.count(".") + 2)}
    for name in names:
        if name != NO_CARD and name not in sections:
            top_sections = sorted(section for section in sections if "." not in section)
            hint = did_you_mean(name, sections) or f"they have {', '.join(top_sections)}"
            raise RunError(f"--differs {name}: the cards have no such key; {hint}")


def _value_text(value: Any) -> str:
    """Return a card's value as text for a message, with at most 100 characters."""
    return "not known" if value is None else short_text(value, 100)


class CompareArguments(Arguments):
    """The runs, the keys in which they may differ, and how they are compared."""

    runs: CliPositionalArg[list[Path]] = argument(
        "folders of finished runs; the others are compared with the first", "RUN"
    )
    differs: list[str] = argument("intended difference between the runs", "KEY", default=[])
    normaliser: NormaliserName = argument("normaliser with which answers are compared", default="squad")
    step: From0Count | None = argument("step of trainings whose validations are compared", "N", default=None)
    out: Path | None = argument("folder for compare.json, compare.md and pictures", "DIR", default=None)
    resamples: Positive = argument("replicates of the bootstrap", "N", default=Bootstrap.resamples)
    seed: Annotated[int, Field(ge=0)] = argument("seed of bootstrap and permutations", "N", default=0)
    skip_bad_rows: bool = argument(HELP, default=False)
    check_only: bool = argument(CHECK_ONLY, default=False)

    @model_validator(mode="after")
    def _several_runs(self) -> CompareArguments:
        if len(self.runs) < 2:
            raise ValueError("RUN: give at least two runs")
        return self


@command_main(*WRONG_RUN)
def main(arguments: Sequence[str] | None = None, prog: str = "rag-r1 eval compare") -> int:
    """Compare runs, print the tables and return the exit status."""
    args = read_arguments(
        CompareArguments,
        arguments,
        prog=prog,
        description=__doc__.split("\n\n")[0],
        epilog=_EPILOG,
        check=_check_runs,
    )
    runs = _check_runs(args)
    if args.check_only:
        print(f"all checks passed: {len(runs.names)} runs share {runs.questions.count:,} questions")
        return 0
    comparison = compare_runs(runs, args.normaliser, Bootstrap(resamples=args.resamples, seed=args.seed))
    print(write_comparison(comparison, args.out))
    return 0


def _check_runs(args: CompareArguments) -> ComparableRuns:
    """Check the arguments and read the runs. Raises StartError with all problems."""
    with StartChecks() as checks:
        if args.out is not None:
            checks.run(check_out, args.out)
        runs = checks.run(
            read_runs, args.runs, args.differs, skip_bad_rows=args.skip_bad_rows, step=args.step
        )
    assert runs is not None  # or the checks have raised
    return runs


def write_comparison(comparison: Mapping[str, Any], out: Path | None) -> str:
    """Return the page compare.md. With a folder `out`, also writes compare.json, the page and its pictures;
    raises OSError if it cannot."""
    from rag_r1.evaluation.report.comparison_markdown import markdown
    from rag_r1.evaluation.report.plots import draw_comparison

    if out is None:
        return markdown(comparison)
    out.mkdir(parents=True, exist_ok=True)
    pictures = [path for name in ("em", "f1") for path in draw_comparison(comparison, name, out)]
    page = markdown(comparison, pictures)
    write_json(out / "compare.json", comparison)
    write_text(out / "compare.md", page + "\n")
    return page


if __name__ == "__main__":
    sys.exit(main())
