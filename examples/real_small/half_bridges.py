"""Draws questions of which half are bridges: the kind for which a policy has to learn a second search.

    python -m examples.real_small.half_bridges --questions data/questions --out data/half_bridges

Of the questions that rules make (`rag-r1 passage-questions`), a tenth are bridges. Here half of each file
are; the other four kinds have an eighth each. `test.jsonl` gets `--test` questions, `train.jsonl` twice as
many as there are bridges.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import field_validator

from examples.real_small.traces import MIXED, read_questions
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.io.errors import DataError
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.out_folder import check_out, refuse_replaced
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks

#: The files that are read and written.
FILES = ("train.jsonl", "test.jsonl")
OTHER_KINDS = [kind for kind in MIXED if kind != "bridge"]


class HalfBridgesArguments(Arguments):
    """The questions, and the number of those to test."""

    questions: Path = argument("folder of `rag-r1 passage-questions`", "DIR")
    out: Path = argument("folder for train.jsonl and test.jsonl", "DIR")
    test: Positive = argument("questions to test, a multiple of 8", default=400)
    seed: int = argument("seed of the draws", default=0)

    @field_validator("test")
    @classmethod
    def _eighths(cls, test: int) -> int:
        if test % 8:
            raise ValueError("--test must be a multiple of 8, since four kinds have an eighth each")
        return test


@command_main(RunError, DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    prog = "python -m examples.real_small.half_bridges"
    args = read_arguments(HalfBridgesArguments, arguments, prog=prog, description=__doc__, check=_check_start)
    drawn = _check_start(args)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, rows in drawn.items():
        write_json_lines(args.out / name, rows, ensure_ascii=False)
        bridges = sum(row["kind"] == "bridge" for row in rows)
        print(f"{args.out / name}: {len(rows):,} questions, {bridges:,} of them bridges")
    return 0


def _check_start(args: HalfBridgesArguments) -> dict[str, list[dict[str, Any]]]:
    """Return the drawn rows of each file. Raises StartError with the problems of the questions and of
    --out."""
    with StartChecks() as checks:
        checks.run(check_out, args.out)
        checks.run(lambda: refuse_replaced([args.questions / name for name in FILES], args.out, FILES))
        drawn = {name: checks.run(_drawn_rows, args, name) or [] for name in FILES}
    return drawn


def _drawn_rows(args: HalfBridgesArguments, name: str) -> list[dict[str, Any]]:
    """Return the rows that are drawn from a file. Raises DataError, which names the file, if it is none of
    `rag-r1 passage-questions` or has too few of a kind."""
    path = args.questions / name
    read_questions(path)
    with path.open(encoding="utf-8") as lines:
        rows = list(map(json.loads, lines))
    bridges = None if name == "train.jsonl" else args.test // 2
    try:
        return draw(rows, bridges, random.Random(f"half-bridges-{path.stem}-{args.seed}"))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def draw(rows: Sequence[dict[str, Any]], bridges: int | None, rng: random.Random) -> list[dict[str, Any]]:
    """Return `bridges` bridges and as many other questions, a quarter of each kind, shuffled. With None, the
    number is that of all bridges, rounded down to a multiple of 4.

    Raises ValueError if there are too few of a kind.
    """
    of_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in MIXED}
    share = (len(of_kind["bridge"]) if bridges is None else bridges) // len(OTHER_KINDS)
    drawn = []
    for kind, number in {"bridge": share * len(OTHER_KINDS), **dict.fromkeys(OTHER_KINDS, share)}.items():
        if number > len(of_kind[kind]):
            raise ValueError(f"{len(of_kind[kind])} questions of the kind {kind}, but {number} are needed")
        drawn += rng.sample(of_kind[kind], number)
    rng.shuffle(drawn)
    return drawn


if __name__ == "__main__":
    sys.exit(main())
