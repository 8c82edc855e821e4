"""The command line that the scripts of this package share.

`run` does the common work: it reads the arguments, checks everything before the first file is written, writes
the splits and prints the counts. A script passes it the class of its arguments and the function that reads
its splits. `main` is `run` for the scripts that read each split from a file of questions or from a Hub data
set. `build.py` has a command line of its own, which uses `SetArguments` and `read_protocol` only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import model_validator

from rag_r1.data.files.bad_rows import HELP, BadRows
from rag_r1.data.files.hub_rows import read_hub
from rag_r1.data.files.qa_parquet import REPEATED, SET_FILES, Split, make_splits, write_splits
from rag_r1.data.files.question_file import QuestionFile, read_file
from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, flag_of, read_arguments, with_defaults
from rag_r1.options.out_folder import check_out, refuse_replaced
from rag_r1.protocols import Protocol, load_with_prompt, protocol_names
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks

ScriptArguments = TypeVar("ScriptArguments", bound="QuestionArguments")

EPILOG = """\
A row is {"question": text, "golden_answers": text or list of texts}, with an optional "id"; "answer" and
"answers" are read too. Files are a JSON array, JSON lines, CSV or TSV with a header (each also gzipped), or
parquet. A row that cannot be used is an error, unless --skip-bad-rows leaves it out.

The output is train.parquet and test.parquet (each if its input is given) and data_summary.json, which has the
printed counts. Of rows with the same question and the same answers the first is kept; rows with the same
question and different answers are all kept; a question in both files is removed from train.
repeated_questions.jsonl lists all of these rows.
"""


class SetArguments(Arguments):
    """The arguments of every command that writes a set of questions."""

    out: Path = argument("folder for the parquet files", "DIR")
    protocol: str = argument(
        f"shipped protocol ({', '.join(protocol_names())}) or your own .yaml", "NAME", default="rag_r1_mq"
    )
    prompt: str | None = argument("your own prompt: a text file with {question} in it", "FILE", default=None)
    skip_bad_rows: bool = argument(HELP, default=False)


class QuestionArguments(SetArguments):
    """The arguments that all scripts share; each script sets its defaults."""

    train: str | None = argument("file of questions to train on", "FILE", default=None)
    validation: str | None = argument("file of questions to validate on", "FILE", default=None)
    source_name: str = argument(
        "data_source of the rows, under which veRL reports them, and the prefix of their ids", "NAME"
    )
    check_only: bool = argument(CHECK_ONLY, default=False)

    #: The fields with files that are read.
    inputs: ClassVar[tuple[str, ...]] = ("train", "validation")

    @model_validator(mode="after")
    def _inputs_stay(self) -> QuestionArguments:
        refuse_replaced([getattr(self, name) for name in self.inputs], self.out, SET_FILES)
        return self


class HubArguments(QuestionArguments):
    """The shared arguments, and a Hub data set as the source if no file is given."""

    hub: str | None = argument("Hub data set, used if no file is given", "DATASET", default=None)
    hub_config: str | None = argument("configuration of the Hub data set", "NAME", default=None)
    hub_splits: tuple[str, str] = argument(
        "splits of the Hub data set", ("TRAIN", "VALIDATION"), default=("train", "dev")
    )


@dataclass(frozen=True)
class ScriptInput:
    """The data that a script has read."""

    splits: list[Split]
    #: Further entries of the summary.
    details: dict[str, Any] = field(default_factory=dict)
    #: Bad rows of files that are not splits, such as the file of difficulties.
    other_bad_rows: BadRows = field(default_factory=BadRows)


def main(
    description: str,
    protocol: str,
    source_name: str | None = None,
    hub: tuple[str, str] | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a script with these defaults and return the exit status.

    `hub` is the Hub data set and its configuration, which are read if no file is given. `arguments` defaults
    to the command line.
    """
    dataset, config = hub or (None, None)
    declared = with_defaults(
        HubArguments, protocol=protocol, source_name=source_name, hub=dataset, hub_config=config
    )
    return run(declared, arguments, description, lambda args: ScriptInput(make_splits(*_read_inputs(args))))


@command_main(DataError, RunError, OSError)
def run(
    declared: type[ScriptArguments],
    arguments: Sequence[str] | None,
    description: str,
    read: Callable[[ScriptArguments], ScriptInput],
) -> int:
    """Write the splits that `read` returns for the arguments, print the counts and return the exit status.

    `declared` is the class that declares the arguments; `arguments` defaults to the command line. `read` is
    one of the checks before the first file is written; its errors are reported together with those of the
    others.
    """

    def check(args: ScriptArguments) -> tuple[Protocol, ScriptInput]:
        with StartChecks() as checks:
            checks.run(_check_source_name, args.source_name)
            protocol = checks.run(read_protocol, args.protocol, args.prompt)
            checks.run(check_out, args.out, "data_process")
            script_input = checks.run(read, args)
        assert protocol is not None and script_input is not None  # else StartChecks has raised
        return protocol, script_input

    args = read_arguments(declared, arguments, description=description, epilog=EPILOG, check=check)
    protocol, script_input = check(args)
    splits = script_input.splits
    if args.check_only:
        names = ", ".join(split.name for split in splits)
        print(f"all checks passed: {names} would be written into {args.out}")
        return 0
    summary = write_splits(splits, protocol, args.source_name, args.out, script_input.details)
    _print_counts(args.out, summary)
    if any(split.repeats for split in splits):
        print(f"{args.out / REPEATED}: the repeated questions, row by row")
    for line in sum((split.source.bad for split in splits), script_input.other_bad_rows).left_out():
        print(line, file=sys.stderr)
    return 0


def _print_counts(out: Path, summary: Mapping[str, Any]) -> None:
    """Print the counts of each split."""
    for name, counts in summary["splits"].items():
        overlap = f", {counts['overlap_with_test']} removed that are in test" if name == "train" else ""
        print(
            f"{out / name}.parquet: {counts['written']} questions of {counts['read']} rows "
            f"({counts['duplicates']} duplicates removed{overlap}, "
            f"{counts['malformed']} malformed rows left out)"
        )
        if differing := counts["same_question_other_answers"]:
            print(f"  {differing} rows have the question of another row but different answers: they are kept")
        if same_id := counts["rows_with_repeated_id"]:
            print(f"  rows with the id of another row: {same_id}; they got ids made of their questions")


def _check_source_name(name: str) -> None:
    """Raise DataError for a name that cannot be the first part of an id."""
    if not re.fullmatch(r"[\w.-]+", name):
        raise DataError(f"--source-name {name!r}: use letters, digits, `_`, `.` and `-`")


def _read_inputs(args: HubArguments) -> tuple[QuestionFile | None, QuestionFile | None]:
    """Read the questions for training and for validation; either is None if it is not given.

    Raises StartError with the files that cannot be read or have bad rows, and DataError if the Hub data set
    cannot be read or nothing is given.
    """
    if args.train or args.validation:
        with StartChecks() as checks:
            if hub := [flag_of(name) for name in args.model_fields_set if name.startswith("hub")]:
                checks.add(
                    DataError(f"files are read in place of the Hub: leave out {', '.join(sorted(hub))}")
                )
            train, test = (
                read_split(path, args.skip_bad_rows, checks) for path in (args.train, args.validation)
            )
        return train, test
    if not args.hub:
        raise DataError("nothing to read: give --train FILE and --validation FILE, or --hub DATASET")
    train, test = (read_hub(args.hub, args.hub_config, split) for split in args.hub_splits)
    (train.bad + test.bad).refuse(args.skip_bad_rows, "nothing was written")
    return train, test


def read_split(path: str | None, skip_bad_rows: bool, checks: StartChecks) -> QuestionFile | None:
    """Return the questions of a file; None if there is no path, or if `checks` has got a problem: that the
    file cannot be read, or that it has bad rows and `skip_bad_rows` is false."""
    file = checks.run(read_file, path) if path else None
    if file is not None:
        checks.run(file.bad.refuse, skip_bad_rows, "nothing was written")
    return file


def read_protocol(name: str, prompt_file: str | None) -> Protocol:
    """Return a protocol, with the prompt of `prompt_file` unless that is None.

    Raises StartError with the problems of both.
    """
    with StartChecks() as checks:
        protocol = checks.run(load_with_prompt, name, prompt_file)
        if protocol is None and prompt_file is not None:  # a wrong protocol must not hide a wrong prompt
            checks.run(load_with_prompt, "rag_r1_mq", prompt_file)
    assert protocol is not None  # else StartChecks has raised
    return protocol
