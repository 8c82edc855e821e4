"""The command line that all scripts here share; a script differs in its defaults only."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data_process.bad_rows import HELP, BadRows
from data_process.qa_parquet import REPEATED, Split, make_splits, write_splits
from data_process.questions import DataError, Source, read_file, read_hub
from rag_r1.protocols import Protocol, ProtocolError, load_protocol, protocol_names

#: Key of what a script's `read` gives beside its splits: the bad rows of other files than the splits' own.
BAD_ROWS = "bad_rows"

_ROWS = """\
A row is {"question": text, "golden_answers": text or list of texts}, with an optional "id"; "answer" and
"answers" are read too. Files are a JSON array, JSON lines, CSV or TSV with a header (each also gzipped), or
parquet. A row that cannot be used is an error, unless --skip-bad-rows leaves it out.

Written are train.parquet and test.parquet (each if its input is given) and data_summary.json, which holds the
printed counts. Of rows with the same question and the same answers the first stays; rows with the same
question and other answers all stay; a question in both files is removed from train. repeated_questions.jsonl
names all of these rows.
"""


def main(
    description: str,
    protocol: str,
    source_name: str | None = None,
    hub: tuple[str, str] | None = None,
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a script with its defaults; returns the exit status.

    `hub`: Hub data set and configuration, read if no file is given. `arguments`: else the command line's.
    """
    parser = make_parser(description, protocol, source_name)
    _add_hub(parser, hub)
    options = parser.parse_args(arguments)
    return run(options, lambda given: (make_splits(*_sources(given)), {}))


def run(
    options: argparse.Namespace, read: Callable[[argparse.Namespace], tuple[list[Split], dict[str, Any]]]
) -> int:
    """Write what `read` gives (the splits, and what else the summary is to hold) and print the counts;
    returns the exit status."""
    try:
        if not re.fullmatch(r"[\w.-]+", options.source_name):
            raise DataError(f"--source-name {options.source_name!r}: use letters, digits, `_`, `.` and `-`")
        dialect = _protocol(options)
        splits, more = read(options)
        bad = sum((split.source.bad for split in splits), more.pop(BAD_ROWS, BadRows()))
        if bad.count and not options.skip_bad_rows:
            raise DataError(f"nothing was written, because of {bad.refusal()}")
        summary = write_splits(splits, dialect, options.source_name, Path(options.out), more)
    except (DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, told in summary["splits"].items():
        overlap = f", {told['overlap_with_test']} removed that stand in test" if name == "train" else ""
        print(
            f"{Path(options.out) / name}.parquet: {told['written']} questions of {told['read']} rows "
            f"({told['duplicates']} duplicates removed{overlap}, {told['malformed']} malformed rows left out)"
        )
        if others := told["same_question_other_answers"]:
            print(f"  {others} rows have the question of another row and other answers: they are kept")
    if any(split.repeats for split in splits):
        print(f"{Path(options.out) / REPEATED}: the repeated questions, row by row")
    for line in bad.left_out():
        print(line, file=sys.stderr)
    return 0


def make_parser(description: str, protocol: str, source_name: str | None) -> argparse.ArgumentParser:
    """The options that all scripts share."""
    parser = argparse.ArgumentParser(
        description=description, epilog=_ROWS, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the parquet files")
    parser.add_argument("--train", metavar="FILE", help="questions to train on")
    parser.add_argument("--validation", metavar="FILE", help="questions to validate on")
    parser.add_argument(
        "--protocol",
        default=protocol,
        metavar="NAME",
        help=f"shipped protocol ({', '.join(protocol_names())}) or your own .yaml (default: {protocol})",
    )
    parser.add_argument("--skip-bad-rows", action="store_true", help=HELP)
    parser.add_argument("--prompt", metavar="FILE", help="your own prompt: a text file with {question} in it")
    parser.add_argument(
        "--source-name",
        default=source_name,
        required=source_name is None,
        metavar="NAME",
        help="data_source of the rows, under which veRL reports, and the beginning of their ids"
        + (f" (default: {source_name})" if source_name else ""),
    )
    return parser


def _add_hub(parser: argparse.ArgumentParser, hub: tuple[str, str] | None) -> None:
    where = "used if no file is given" if hub else "instead of files"
    default = f" (default: {hub[0]})" if hub else ""
    parser.add_argument(
        "--hub", default=hub and hub[0], metavar="DATASET", help=f"Hub data set, {where}{default}"
    )
    parser.add_argument("--hub-config", default=hub and hub[1], metavar="NAME", help="its configuration")
    parser.add_argument(
        "--hub-splits",
        nargs=2,
        default=("train", "dev"),
        metavar=("TRAIN", "VALIDATION"),
        help="its splits (default: train dev)",
    )


def _sources(options: argparse.Namespace) -> tuple[Source | None, Source | None]:
    if options.train or options.validation:
        return (
            read_file(options.train) if options.train else None,
            read_file(options.validation) if options.validation else None,
        )
    if not options.hub:
        raise DataError("nothing to read: give --train FILE and --validation FILE, or --hub DATASET")
    train, test = (read_hub(options.hub, options.hub_config, split) for split in options.hub_splits)
    return train, test


def _protocol(options: argparse.Namespace) -> Protocol:
    try:
        prompt = Path(options.prompt).read_text(encoding="utf-8") if options.prompt else None
        return load_protocol(options.protocol, prompt)
    except UnicodeDecodeError as error:
        raise DataError(f"--prompt {options.prompt}: not UTF-8 text: {error}") from error
    except ProtocolError as error:
        raise DataError(str(error)) from error
