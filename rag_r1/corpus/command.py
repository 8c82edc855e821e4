"""`rag-r1 corpus check`: checks which questions a corpus can answer.

The steps: read the questions; ask the retrieval server (retrieval_check.py); scan the corpus once for all
ids, titles and answers (scan.py); judge (verdict.py); write the report (report.py) and, with --supply, a
repaired corpus (repair.py). The first two long steps keep what they have found in the output folder, so the
same command continues after a kill, and repeats nothing if only --supply is added.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.questions import CorpusQuestion, CorpusQuestions, read_questions
from rag_r1.corpus.reader import Corpus, CorpusError
from rag_r1.corpus.redirects import read_redirects
from rag_r1.corpus.repair import REPAIRED, RepairResult, repair
from rag_r1.corpus.report import (
    ANSWERABLE_IDS,
    QuestionVerdict,
    judge_questions,
    markdown,
    missing_evidence,
    summarise,
    write_report,
)
from rag_r1.corpus.retrieval_check import RetrievalResult, RetrieverError, retrieve
from rag_r1.corpus.scan import SAVE_EVERY, ScanResult, ScanTargets, scan_corpus
from rag_r1.corpus.supplements import write_supply
from rag_r1.corpus.title_index import TitleIndex
from rag_r1.corpus.verdict import CorpusFindings, foreign_sources
from rag_r1.data.files.bad_rows import HELP, BadRows
from rag_r1.data.files.row_files import DataError
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Positive, argument, read_arguments
from rag_r1.options.server_address import Address
from rag_r1.options.settings_file import recorded_settings
from rag_r1.tools.retrieval.client import RetrieverConfig
from rag_r1.tools.retrieval.wire import WIRES

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
_USAGE = "usage: rag-r1 corpus check --questions FILE ... --corpus FILE|FOLDER ... --out DIR [--help]"
SUPPLY = "supply.jsonl"
#: Unanswerable questions that are printed; all of them are in verdicts.jsonl.
_LISTED = 10
#: First hits of the retrieval server that are looked for in the corpus.
_PROBED = 1000


class CheckArguments(Arguments):
    """What is checked, against what, and how."""

    questions: list[Path] = argument(
        "questions: veRL parquet, or a data set's own file (JSON, JSON lines, CSV, TSV, parquet)",
        ("FILE", ...),
        old="data",
    )
    corpus: list[Path] = argument(
        "the corpus: .jsonl, .tsv (each plain or .gz), .parquet, a folder of these, or an index folder",
        ("PATH", ...),
    )
    out: Path = argument("folder for the report, and for what a run that is killed has found", "DIR")
    retriever_url: Address | None = argument(
        "a retrieval server that serves this corpus", "URL", default=None
    )
    bm25_url: Address | None = argument("another one, with a BM25 index of it", "URL", default=None)
    topk: Positive = argument("passages in which a server's answer is looked for", default=20)
    wire: Literal[tuple(WIRES)] = argument("wire format of the servers", default="retrieve")
    ids: Literal["auto", "trust", "ignore"] = argument(
        "supporting ids of the data; auto: ignore those of a source of which none is in the corpus",
        default="auto",
    )
    redirects: Path | None = argument(
        'redirects of the corpus\'s Wikipedia: .tsv of from<TAB>to, or .jsonl of {"from", "to"}',
        "FILE",
        default=None,
    )
    supply: list[Path] = argument(
        f"passages for a repaired corpus, DIR/{REPAIRED}; formats as for --corpus, ids may be absent",
        ("FILE", ...),
        default=[],
    )
    skip_bad_rows: bool = argument(HELP, default=False)
    no_progress: bool = argument("show no progress bars", default=False)


@dataclass
class CheckResult:
    """A finished check."""

    judged: list[QuestionVerdict]
    summary: dict[str, Any]
    evidence: CorpusFindings
    repaired: RepairResult | None
    #: Paragraphs of missing pages in the data files.
    offered: int
    #: Rows that were left out, of all files.
    bad: BadRows


def check_corpus(args: CheckArguments, *, save_every: int = SAVE_EVERY) -> CheckResult:
    """Check a corpus and write the report into `given.out`.

    Raises DataError and CorpusError, with the remedy, if a file cannot be read, or has rows that cannot be
    used and are not to be left out; RetrieverError if a server answers nothing. Then nothing is written but
    what was found until then, for the next run.
    """
    progress = not args.no_progress
    corpus, supply = Corpus(args.corpus), Corpus(args.supply, ids=False)
    read = read_questions(args.questions)
    _refuse(read.bad, args)
    titles = TitleIndex(title for one in read.questions for title in one.titles)
    if args.redirects:
        bad = BadRows()
        titles.add_redirects(read_redirects(args.redirects, bad, progress=progress))
        _refuse(bad, args)
        read.bad += bad
    table = AnswerMatcher(gold for one in read.questions for _, golds in one.parts for gold in golds)
    asked = _ask(args, read, table, progress)
    wanted = ScanTargets(
        ids=frozenset(own_id for one in read.questions for own_id in one.ids),
        titles=titles,
        answers=table,
        probe=_probe([*asked.values()]),
    )
    found = scan_corpus(corpus, wanted, args.out / "scan.json", save_every=save_every, progress=progress)
    _refuse(found.bad, args)
    if not found.passages:
        raise CorpusError(f"{', '.join(map(str, args.corpus))}: no passage in it")
    evidence = CorpusFindings(found, titles, table, foreign=_foreign(args, read.questions, found), **asked)
    judged = judge_questions(read.questions, evidence)
    summary = {**summarise(judged, evidence), "notes": _notes(read.questions, evidence, asked, args)}
    repaired = _repair(args, corpus, supply, judged, progress) if args.supply else None
    write_report(args.out, judged, summary)
    lost = {row["title"] for row in missing_evidence(judged) if "title" in row}
    offered = write_supply(args.questions, lost, args.out / SUPPLY)
    bad = read.bad + found.bad + (repaired.bad if repaired else BadRows())
    return CheckResult(judged, summary, evidence, repaired, offered, bad)


def _refuse(bad: BadRows, args: CheckArguments) -> None:
    if bad.count and not args.skip_bad_rows:
        raise DataError(f"nothing was written, because of {bad.refusal()}")


def _ask(
    args: CheckArguments, read: CorpusQuestions, table: AnswerMatcher, progress: bool
) -> dict[str, dict[tuple[str, str], RetrievalResult]]:
    """What each server that was given finds: "retriever" and "bm25"."""
    asked = {}
    for name, url in (("retriever", args.retriever_url), ("bm25", args.bm25_url)):
        if url:
            config = RetrieverConfig(url=url, topk=args.topk, wire=args.wire, cache_size=0)
            store = args.out / f"{name}.jsonl"
            asked[name] = retrieve(
                read.questions, table, config, store, doing=f"asking the {name}", progress=progress
            )
    return asked


def _probe(asked: Sequence[dict[tuple[str, str], RetrievalResult]]) -> frozenset[str]:
    """Ids of passages that the servers returned, to see whether they serve this corpus."""
    firsts = [one.ids[0] for found in asked for one in found.values() if one.ids and one.ids[0]]
    return frozenset(sorted(set(firsts))[:_PROBED])


def _foreign(args: CheckArguments, questions: Sequence[CorpusQuestion], found: ScanResult) -> frozenset[str]:
    if args.ids == "trust":
        return frozenset()
    sources = frozenset(one.source for one in questions if one.ids)
    return sources if args.ids == "ignore" else foreign_sources(questions, found)


def _notes(
    questions: Sequence[CorpusQuestion],
    evidence: CorpusFindings,
    asked: dict[str, dict[tuple[str, str], RetrievalResult]],
    args: CheckArguments,
) -> list[str]:
    """What a reader of the shares must know."""
    notes = []
    if evidence.foreign and args.ids == "auto":
        notes.append(
            f"The supporting ids of {len(evidence.foreign)} source(s) were ignored: none of them is in the "
            "corpus, so they are those of another one. --ids trust counts them as missing."
        )
    for name, found in asked.items():
        if failed := len(questions) - len(found):
            notes.append(f"{failed:,} questions got no answer from the {name}. Run again to ask only these.")
    if lost := len(evidence.found.probe - evidence.found.probe_found):
        notes.append(
            f"{lost:,} of {len(evidence.found.probe):,} passages that the servers returned first are not in "
            "this corpus. Do they serve another one?"
        )
    return notes


def _repair(
    args: CheckArguments, corpus: Corpus, supply: Corpus, judged: list[QuestionVerdict], progress: bool
) -> RepairResult:
    left = missing_evidence(judged)
    return repair(
        corpus,
        supply,
        args.out / REPAIRED,
        ids=[row["id"] for row in left if "id" in row],
        titles=[row["title"] for row in left if "title" in row],
        skip_bad_rows=args.skip_bad_rows,
        progress=progress,
    )


def summary_lines(done: CheckResult, args: CheckArguments) -> list[str]:
    """What is printed: shares, the first unanswerable questions, where the rest is."""
    lines = [terminal_text(line, 2000) for line in markdown(done.summary).splitlines()]
    unanswerable = [one for one in done.judged if one.rule.verdict == "unanswerable"]
    if unanswerable:
        lines += ["", f"unanswerable ({len(unanswerable):,}):"]
        for one in unanswerable[:_LISTED]:
            lines.append("  " + terminal_text(f"{one.question.id}: {one.question.parts[0][0]} ({_why(one)})"))
        if len(unanswerable) > _LISTED:
            lines.append(f"  and {len(unanswerable) - _LISTED:,} more, in {args.out / 'verdicts.jsonl'}")
    lines += ["", f"{args.out}: verdicts.jsonl, {ANSWERABLE_IDS}, missing.jsonl, summary.json, shares.png"]
    if done.offered and not done.repaired:
        lines.append(
            f"{args.out / SUPPLY}: {done.offered:,} paragraphs of missing pages, from the data files; "
            "--supply with this file adds them to the corpus"
        )
    if made := done.repaired:
        lines += [
            f"{made.path}: {made.passages:,} passages and {made.supplied:,} supplied ones "
            f"({made.renamed:,} of these with a new id); "
            f"still missing: {len(made.ids_left):,} ids, {len(made.titles_left):,} titles",
            "Build its index, and check it again:",
            f"  rag-r1 index build --corpus {quote(str(made.path))} --out indexes/repaired --backend bm25",
        ]
    return lines


def _why(one: QuestionVerdict) -> str:
    missing_ids = one.signals.ids_missing or ()
    titles = [title for title, level in (one.signals.titles or {}).items() if level is None]
    if one.rule.name == "ids_missing":
        return "missing: " + ", ".join(missing_ids[:3])
    if one.rule.name == "titles_missing":
        return "missing: " + ", ".join(titles[:3])
    return "no gold answer in the corpus"


@command_main(DataError, CorpusError, RetrieverError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] != "check":
        if arguments and arguments[0] in ("-h", "--help"):
            print(f"{_USAGE}\n\n{_DESCRIPTION}")
            sys.exit(0)
        print(_USAGE, file=sys.stderr)
        return 2
    args = read_arguments(
        CheckArguments, arguments[1:], prog="rag-r1 corpus check", description=_DESCRIPTION, epilog=_EPILOG
    )
    with recorded_settings("rag-r1 corpus check", args):
        done = check_corpus(args)
    print("\n".join(summary_lines(done, args)))
    for line in done.bad.left_out():
        print(terminal_text(line, 1000), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
