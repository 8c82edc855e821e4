"""Runs `rag-r1 corpus check`: reads its arguments, and prints the results of the check (check.py)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from shlex import quote

from rag_r1.corpus import report
from rag_r1.corpus.arguments import CheckArguments
from rag_r1.corpus.check import SUPPLY, CheckResult, check_corpus, check_start
from rag_r1.corpus.verdict import QuestionVerdict
from rag_r1.io.errors import DataError
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.options.settings_file import recorded_settings
from rag_r1.options.subcommands import run
from rag_r1.runs.errors import RunError

_DESCRIPTION = """\
Check a corpus: which of these questions can be answered from it, and what is missing in it.

example:
  rag-r1 corpus check --questions data/hotpotqa/test.parquet --corpus wiki-18.jsonl.gz \\
      --retriever-url http://127.0.0.1:8000 --out checks/wiki-18
"""
_EPILOG = """\
Run again, the same command continues where it was killed. If the retrieval server requires a token, set
RETRIEVAL_TOKEN.
"""
_ABOUT = (
    "What a corpus holds: a question whose passage is missing cannot be answered, however well a policy "
    "searches."
)
#: Maps each subcommand to its function and to its line in --help.
COMMANDS = {"check": ("rag_r1.corpus.command:check", "which questions can be answered from it; resumable")}
#: Most unanswerable questions that are printed; all of them are in verdicts.jsonl.
_MAX_LISTED = 10


def summary_lines(result: CheckResult, args: CheckArguments) -> list[str]:
    """Return the printed lines: the shares, the first unanswerable questions, and the names of the files."""
    lines = [terminal_text(line, 2000) for line in report.markdown(result.summary).splitlines()]
    lines += _unanswerable_lines(result, args)
    names = ("verdicts.jsonl", report.ANSWERABLE_IDS, "missing.jsonl", "summary.json", "shares.png")
    files = [name for name in names if (args.out / name).exists()]  # no picture without matplotlib
    lines += ["", f"{args.out}: {', '.join(files)}"]
    if result.supply_paragraphs and not result.repaired:
        lines.append(
            f"{args.out / SUPPLY}: {result.supply_paragraphs:,} paragraphs of missing pages, from the data "
            "files; --supply with this file adds them to the corpus"
        )
    if repaired := result.repaired:
        lines += [
            f"{repaired.path}: {repaired.passages:,} passages and {repaired.supplied:,} supplied ones "
            f"({repaired.renamed:,} of these with a new id); "
            f"still missing: {len(repaired.ids_left):,} ids, {len(repaired.titles_left):,} titles",
            "Build its index, and check it again:",
            f"  rag-r1 index build --corpus {quote(str(repaired.path))} "
            "--out indexes/repaired --backend bm25",
        ]
    return lines


def _unanswerable_lines(result: CheckResult, args: CheckArguments) -> Iterator[str]:
    """Yield lines that name the first unanswerable questions, each with the reason."""
    unanswerable = [verdict for verdict in result.judged if verdict.rule.verdict == "unanswerable"]
    if not unanswerable:
        return
    yield from ("", f"unanswerable ({len(unanswerable):,}):")
    for verdict in unanswerable[:_MAX_LISTED]:
        question = verdict.question
        yield "  " + terminal_text(f"{question.id}: {question.parts[0].question} ({_reason(verdict)})")
    if len(unanswerable) > _MAX_LISTED:
        yield f"  and {len(unanswerable) - _MAX_LISTED:,} more, in {args.out / 'verdicts.jsonl'}"


def _reason(verdict: QuestionVerdict) -> str:
    """Return why a question is unanswerable, with the first three missing ids or titles."""
    if verdict.rule.name == "ids_missing":
        missing = list(verdict.signals.ids_missing or ())
    elif verdict.rule.name == "titles_missing":
        missing = [title for title, level in (verdict.signals.titles or {}).items() if level is None]
    else:
        return "no gold answer in the corpus"
    return f"missing: {', '.join(missing[:3])}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status, which is 2 for an unknown subcommand."""
    return run("rag-r1 corpus", _ABOUT, COMMANDS, arguments)


@command_main(DataError, RunError, OSError)
def check(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 corpus check` and return its exit status."""
    args = read_arguments(
        CheckArguments,
        arguments,
        check=check_start,
        prog="rag-r1 corpus check",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    inputs = check_start(args)
    if args.check_only:
        print(f"all checks passed: a report on {inputs} would be written into {args.out}")
        return 0
    with recorded_settings("rag-r1 corpus check", args):
        result = check_corpus(args, inputs)
    print("\n".join(summary_lines(result, args)))
    for line in result.bad.left_out():
        print(terminal_text(line, 1000), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
