"""`rag-r1 corpus check`: checks which questions a corpus can answer.

The steps: read the questions; ask the retrieval server (retrieval_check.py); scan the corpus once for all
ids, titles and answers (scan.py); judge (verdict.py); write the report (report.py) and, with --supply, a
repaired corpus (repair.py). The first two long steps keep their results in the output folder, so the same
command continues after a kill, and repeats nothing if only --supply is added.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from rag_r1.corpus import report
from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.arguments import CheckArguments
from rag_r1.corpus.inputs import CorpusInputs, read_inputs
from rag_r1.corpus.questions import CorpusQuestion, CorpusQuestions
from rag_r1.corpus.reader import Corpus
from rag_r1.corpus.redirects import read_redirects
from rag_r1.corpus.repair import REPAIRED, RepairResult, repair
from rag_r1.corpus.retrieval_check import RetrievalResult, retrieve, try_server
from rag_r1.corpus.scan import SAVE_INTERVAL, ScanResult, ScanTargets, refusal, scan_corpus
from rag_r1.corpus.supplements import write_supply
from rag_r1.corpus.title_index import TitleIndex
from rag_r1.corpus.verdict import CorpusFindings, foreign_sources
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.io.errors import DataError
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import read_arguments
from rag_r1.options.out_folder import check_out
from rag_r1.options.settings_file import recorded_settings
from rag_r1.options.subcommands import run
from rag_r1.runs.errors import RunError
from rag_r1.runs.start_checks import StartChecks, try_servers

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
#: Subcommand -> its function, and what it does.
COMMANDS = {"check": ("rag_r1.corpus.command:check", "which questions can be answered from it; resumable")}
SUPPLY = "supply.jsonl"
#: Unanswerable questions that are printed; all of them are in verdicts.jsonl.
_LISTED = 10
#: First hits of the retrieval server that are looked for in the corpus.
_PROBED = 1000
#: What a server finds, by the question's key.
_Results = dict[tuple[str, str], RetrievalResult]


@dataclass
class CheckResult:
    """A finished check."""

    judged: list[report.QuestionVerdict]
    summary: dict[str, Any]
    evidence: CorpusFindings
    repaired: RepairResult | None
    #: Paragraphs of missing pages in the data files.
    offered: int
    #: Rows that were left out, of all files.
    bad: BadRows


def check_start(args: CheckArguments) -> CorpusInputs:
    """What is read, after all checks of files, folder and servers. A server is tried if it has not answered
    an earlier run. Raises StartError with all problems."""
    with StartChecks() as checks:
        checks.run(check_out, args.out, "rag-r1 corpus check")
        inputs = read_inputs(
            checks, args.questions, args.corpus, args.supply, skip_bad_rows=args.skip_bad_rows
        )
        if args.redirects:
            checks.run(next, read_redirects(args.redirects, BadRows(), progress=False), None)
    assert inputs is not None
    attempts = [
        try_server(config, flag)
        for flag, config, store in args.servers()
        if args.check_only or not store.exists()
    ]
    asyncio.run(try_servers(*attempts))
    return inputs


def check_corpus(
    args: CheckArguments, inputs: CorpusInputs | None = None, *, save_interval: int = SAVE_INTERVAL
) -> CheckResult:
    """Check a corpus and write the report into `args.out`. `inputs`: of `check_start`, which is otherwise
    done first.

    Raises DataError, with the remedy, if a file cannot be read, or has rows that cannot be used and are not
    to be left out; RunError if a server answers nothing. Then nothing is written but the results until then,
    for the next run.
    """
    inputs = inputs or check_start(args)
    data, corpus = inputs.questions, inputs.corpus
    titles, bad_redirects = _titles(args, data)
    answers = AnswerMatcher(
        gold for question in data.questions for _, golds in question.parts for gold in golds
    )
    retrieved = _search(args, data, answers)
    ids = frozenset(passage_id for question in data.questions for passage_id in question.ids)
    scan = _scan(args, corpus, ScanTargets(ids, titles, answers, _probe(retrieved)), save_interval)
    foreign = _foreign(args, data.questions, scan)
    evidence = CorpusFindings(scan, titles, answers, foreign=foreign, **retrieved)
    judged = report.judge_questions(data.questions, evidence)
    notes = _notes(data.questions, evidence, retrieved, args)
    summary = {**report.summarise(judged, evidence), "notes": notes}
    missing = report.missing_evidence(judged)
    repaired = _repair(args, corpus, inputs.supply, missing) if args.supply else None
    report.write_report(args.out, judged, summary)
    offered = write_supply(args.questions, _missing_names(missing, "title"), args.out / SUPPLY)
    bad = sum([bad_redirects, scan.bad, repaired.bad if repaired else BadRows()], data.bad)
    return CheckResult(judged, summary, evidence, repaired, offered, bad)


def _titles(args: CheckArguments, data: CorpusQuestions) -> tuple[TitleIndex, BadRows]:
    """The titles that the questions name, with their redirects, and the bad rows of these."""
    titles, bad = TitleIndex(title for question in data.questions for title in question.titles), BadRows()
    if args.redirects:
        titles.add_redirects(read_redirects(args.redirects, bad, progress=not args.no_progress))
        _refuse(bad, args)
    return titles, bad


def _scan(args: CheckArguments, corpus: Corpus, targets: ScanTargets, save_interval: int) -> ScanResult:
    file, progress = args.out / "scan.json", not args.no_progress
    scan = scan_corpus(corpus, targets, file, interval=save_interval, progress=progress)
    _refuse(scan.bad, args)
    if scan.repeated.count:
        raise DataError(f"no report was written: {refusal(scan.repeated)}")
    if not scan.passages:
        raise DataError(f"{', '.join(map(str, args.corpus))}: no passage in it")
    return scan


def _repair(
    args: CheckArguments, corpus: Corpus, supply: Corpus, missing: Sequence[dict[str, Any]]
) -> RepairResult:
    ids, titles = _missing_names(missing, "id"), _missing_names(missing, "title")
    options = {"skip_bad_rows": args.skip_bad_rows, "progress": not args.no_progress}
    return repair(corpus, supply, args.out / REPAIRED, ids=ids, titles=titles, **options)


def _missing_names(missing: Sequence[dict[str, Any]], key: str) -> list[str]:
    """The ids, or the titles, of missing evidence."""
    return [row[key] for row in missing if key in row]


def _refuse(bad: BadRows, args: CheckArguments) -> None:
    if bad.count and not args.skip_bad_rows:
        raise DataError(f"no report was written, because of {bad.refusal()}")


def _search(args: CheckArguments, data: CorpusQuestions, answers: AnswerMatcher) -> dict[str, _Results]:
    """The results of each server with an address: "retriever" and "bm25"."""
    retrieved = {}
    for _, config, store in args.servers():
        activity, progress = f"asking the {store.stem}", not args.no_progress
        retrieved[store.stem] = retrieve(
            data.questions, answers, config, store, doing=activity, progress=progress
        )
    return retrieved


def _probe(retrieved: dict[str, _Results]) -> frozenset[str]:
    """Ids of passages that the servers returned, to see whether they serve this corpus."""
    firsts = {result.ids[0] for results in retrieved.values() for result in results.values() if result.ids}
    return frozenset(sorted(filter(None, firsts))[:_PROBED])


def _foreign(args: CheckArguments, questions: Sequence[CorpusQuestion], scan: ScanResult) -> frozenset[str]:
    if args.ids == "trust":
        return frozenset()
    sources = frozenset(question.source for question in questions if question.ids)
    return sources if args.ids == "ignore" else foreign_sources(questions, scan)


def _notes(
    questions: Sequence[CorpusQuestion],
    evidence: CorpusFindings,
    retrieved: dict[str, _Results],
    args: CheckArguments,
) -> list[str]:
    """Notes that a reader of the shares must know."""
    notes = []
    if evidence.foreign and args.ids == "auto":
        notes.append(
            f"The supporting ids of {len(evidence.foreign)} source(s) were ignored: none of them is in the "
            "corpus, so they are those of another one. --ids trust counts them as missing."
        )
    for name, results in retrieved.items():
        if failed := len(questions) - len(results):
            notes.append(f"{failed:,} questions got no answer from the {name}. Run again to ask only these.")
    probe = evidence.scan.probe
    if foreign := len(probe - evidence.scan.probe_found):
        notes.append(
            f"{foreign:,} of {len(probe):,} passages that the servers returned first are not in this corpus. "
            "Do they serve another one?"
        )
    return notes


def summary_lines(result: CheckResult, args: CheckArguments) -> list[str]:
    """The printed lines: shares, the first unanswerable questions, the names of the files."""
    lines = [terminal_text(line, 2000) for line in report.markdown(result.summary).splitlines()]
    unanswerable = [verdict for verdict in result.judged if verdict.rule.verdict == "unanswerable"]
    if unanswerable:
        lines += ["", f"unanswerable ({len(unanswerable):,}):"]
        for verdict in unanswerable[:_LISTED]:
            question = verdict.question
            line = f"{question.id}: {question.parts[0][0]} ({_reason(verdict)})"
            lines.append("  " + terminal_text(line))
        if len(unanswerable) > _LISTED:
            lines.append(f"  and {len(unanswerable) - _LISTED:,} more, in {args.out / 'verdicts.jsonl'}")
    files = ("verdicts.jsonl", report.ANSWERABLE_IDS, "missing.jsonl", "summary.json", "shares.png")
    lines += ["", f"{args.out}: {', '.join(files)}"]
    if result.offered and not result.repaired:
        lines.append(
            f"{args.out / SUPPLY}: {result.offered:,} paragraphs of missing pages, from the data files; "
            "--supply with this file adds them to the corpus"
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


def _reason(verdict: report.QuestionVerdict) -> str:
    titles = (verdict.signals.titles or {}).items()
    missing = {
        "ids_missing": verdict.signals.ids_missing or (),
        "titles_missing": [title for title, level in titles if level is None],
    }.get(verdict.rule.name)
    return "no gold answer in the corpus" if missing is None else f"missing: {', '.join(missing[:3])}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. Returns its exit status; 2 for one that does not exist."""
    return run("rag-r1 corpus", _ABOUT, COMMANDS, arguments)


@command_main(DataError, RunError, OSError)
def check(arguments: Sequence[str] | None = None) -> int:
    """Run `rag-r1 corpus check`; returns its exit status."""
    texts = {"prog": "rag-r1 corpus check", "description": _DESCRIPTION, "epilog": _EPILOG}
    args = read_arguments(CheckArguments, arguments, check=check_start, **texts)
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
