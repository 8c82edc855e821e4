"""`rag-r1 documents`: converts a folder of documents to a corpus for the retrieval server.

The command checks its arguments, has corpus.py make the passages, and names the files that were not read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.options.settings_file import SETTINGS, recorded_settings
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import CHECK_ONLY, StartChecks
from rag_r1.tools.documents.corpus import (
    CORPUS,
    MADE_FROM,
    count_passages,
    document_files,
    index_folder,
    other_files,
)
from rag_r1.tools.documents.parsers import ENDINGS

#: Most skipped files that are named in the output.
_MAX_NAMED = 5
_DESCRIPTION = f"""\
Cut the documents of a folder ({", ".join(ENDINGS)}; subfolders too) into passages of about 100 words, with
titles and page numbers, and write them as a corpus for the retrieval server. An existing corpus is kept
if the folder has not changed since. PDFs need pypdf: pip install 'rag-r1[documents]'.

example:
  rag-r1 documents --folder my/notes --out my/corpus
  rag-r1 index build --corpus my/corpus/corpus.jsonl --out my/index --backend bm25
"""


class DocumentsArguments(Arguments):
    """The arguments of `rag-r1 documents`."""

    folder: Path = argument("the folder with the documents", "DIR")
    out: Path = argument("folder for corpus.jsonl", "DIR")
    skip_bad_files: bool = argument(
        "leave out files that cannot be read; otherwise they are named and nothing is written", default=False
    )
    no_progress: bool = argument("show no progress bar", default=False)
    check_only: bool = argument(CHECK_ONLY, default=False)


@command_main(RunError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = read_arguments(
        DocumentsArguments, arguments, prog="rag-r1 documents", description=_DESCRIPTION, check=_check_start
    )
    passages = _check_start(args)
    if args.check_only:
        print(f"all checks passed: {passages:,} passages for {args.out}")
        return 0
    with recorded_settings("rag-r1 documents", args, replaces=True):
        corpus = index_folder(
            args.folder, args.out, progress=not args.no_progress, skip_bad_files=args.skip_bad_files
        )
    with corpus.open("rb") as lines:  # an unchanged corpus was not written again, so its lines are counted
        print(f"{sum(1 for _ in lines):,} passages: {terminal_text(str(corpus), 4000)}")
    if skipped := [path for path in other_files(args.folder, args.out) if not _is_output(path, args.out)]:
        print(_skipped_line(args.folder, skipped), file=sys.stderr)
    return 0


def _is_output(path: Path, out: Path) -> bool:
    """Return whether a file is one that the command has written; `out` may be the folder of documents."""
    return path.parent.resolve() == out.resolve() and path.name in (CORPUS, MADE_FROM, SETTINGS)


def _skipped_line(folder: Path, skipped: Sequence[Path]) -> str:
    """Return the line about files that were not read because of their type."""
    paths = ", ".join(terminal_text(str(path.relative_to(folder)), 200) for path in skipped[:_MAX_NAMED])
    suffix = f" and {len(skipped) - _MAX_NAMED:,} more" if len(skipped) > _MAX_NAMED else ""
    return f"not read (supported are {', '.join(ENDINGS)}): {paths}{suffix}"


def _check_start(args: DocumentsArguments) -> int | None:
    """Check the folders, and read the documents with --check-only or if something else is wrong. Returns the
    number of passages, if it is known. Raises StartError, which names everything that is wrong."""
    with StartChecks() as checks:
        checks.run(check_out, args.out, "rag-r1 documents")
        run = None if args.is_partial else args.out  # which may be wrong
        if args.check_only or args.is_partial or checks.problems:
            progress, skips = not args.no_progress, args.skip_bad_files
            return checks.run(count_passages, args.folder, run, progress=progress, skip_bad_files=skips)
        checks.run(document_files, args.folder, run)
    return None


if __name__ == "__main__":
    sys.exit(main())
