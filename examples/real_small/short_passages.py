"""Cuts the passages of a corpus to their first words, so that two of them fit into a short context.

    python -m examples.real_small.short_passages --corpus hotpotqa_corpus.jsonl.gz --out data/corpus.jsonl

A passage keeps its id and its title, which is its first line; only the lines below are cut. Questions are
then made from the shortened corpus (`rag-r1 passage-questions`), so the policy sees the fact for which a
question asks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rag_r1.corpus.inputs import check_first_rows, passages_of
from rag_r1.corpus.reader import Corpus
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.out_folder import check_out_file
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks


class ShortPassagesArguments(Arguments):
    """The corpus, the number of words of a passage, and the file to write."""

    corpus: Path = argument("passages, in any format that an index is built from", "FILE")
    out: Path = argument("file for the short passages", "FILE.jsonl")
    words: Positive = argument("words of a passage after its title; 50 are about 80 tokens", default=50)


@command_main(RunError, ValueError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    prog = "python -m examples.real_small.short_passages"
    args = read_arguments(
        ShortPassagesArguments, arguments, prog=prog, description=__doc__, check=_check_start
    )
    _check_start(args)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    count = write_json_lines(args.out, shorten(Corpus([args.corpus]), args.words), ensure_ascii=False)
    print(f"{args.out}: {count:,} passages")
    return 0


def _check_start(args: ShortPassagesArguments) -> None:
    """Raise StartError with the problems of the corpus and of --out."""
    with StartChecks() as checks:
        checks.run(check_out_file, args.out, inputs=[args.corpus])
        checks.run(lambda: check_first_rows(Corpus([args.corpus])))


def shorten(corpus: Corpus, words: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the corpus, each with the first words of its text.

    Raises DataError, with file and line, for a row that is not a passage.
    """
    for passage, _ in passages_of(corpus):
        *title, text = passage.contents.split("\n", 1)  # a passage of one line has no title
        yield {**passage.row(), "contents": "\n".join([*title, " ".join(text.split()[:words])])}


if __name__ == "__main__":
    sys.exit(main())
