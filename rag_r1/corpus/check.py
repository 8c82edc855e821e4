"""Checks which questions a corpus can answer, and writes the report.

A check has these steps:

1. read the questions (questions.py),
2. send them to the retrieval servers, if any are given (retrieval_check.py),
3. scan the corpus once for all ids, titles and answers (scan.py),
4. decide the verdict on each question (verdict.py),
5. write the report (report.py) and, with --supply, a repaired corpus (repair/).

Steps 2 and 3, the long ones, keep their results in the output folder. So the same command resumes after a
kill, and repeats neither if only --supply is added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rag_r1.corpus import report
from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.arguments import CheckArguments, ServerName
from rag_r1.corpus.inputs import CorpusInputs, read_inputs
from rag_r1.corpus.questions import CorpusQuestion
from rag_r1.corpus.reader import Corpus
from rag_r1.corpus.redirects import check_redirects, read_redirects
from rag_r1.corpus.repair.repaired_corpus import REPAIRED, RepairResult, repair
from rag_r1.corpus.repair.supply import write_supply
from rag_r1.corpus.retrieval_check import RetrievalResults, retrieve, try_server
from rag_r1.corpus.scan import SAVE_INTERVAL, ScanResult, ScanTargets, scan_corpus
from rag_r1.corpus.seen_ids import refusal
from rag_r1.corpus.title_index import TitleIndex
from rag_r1.corpus.verdict import CorpusFindings, QuestionVerdict, foreign_sources, judge_questions
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.io.errors import DataError
from rag_r1.options.out_folder import check_out
from rag_r1.runs.start_checks import StartChecks, try_servers

#: The file with those paragraphs of missing pages that the data files contain.
SUPPLY = "supply.jsonl"
#: Most of the servers' first hits that are looked up in the corpus.
_MAX_FIRST_HITS = 1000


@dataclass
class CheckResult:
    """The results of a finished check."""

    #: The verdict on each question, in the order of the questions.
    judged: list[QuestionVerdict]
    #: The content of summary.json.
    summary: dict[str, Any]
    #: The repaired corpus; None without --supply.
    repaired: RepairResult | None
    #: Number of paragraphs in `SUPPLY`.
    supply_paragraphs: int
    #: The rows of all files that were left out.
    bad: BadRows


def check_start(args: CheckArguments) -> CorpusInputs:
    """Check files, folder and servers, and return the content of the files.

    A server whose results an earlier run has left is tried only with --check-only. Raises StartError with all
    problems.
    """
    with StartChecks() as checks:
        checks.run(check_out, args.out, "rag-r1 corpus check")
        inputs = read_inputs(
            checks, args.questions, args.corpus, args.supply, skip_bad_rows=args.skip_bad_rows
        )
        if args.redirects:
            checks.run(check_redirects, args.redirects, args.skip_bad_rows)
        checks.run(_try_servers, args)
    assert inputs is not None  # otherwise the block has raised StartError
    return inputs


def _try_servers(args: CheckArguments) -> None:
    """Send one request to each server that has to be tried. Raises RunError if one does not answer."""
    attempts = [
        try_server(server.config, server.flag)
        for server in args.servers()
        if args.check_only or not server.results_file.exists()
    ]
    asyncio.run(try_servers(*attempts))


def check_corpus(
    args: CheckArguments, inputs: CorpusInputs | None = None, *, save_interval: int = SAVE_INTERVAL
) -> CheckResult:
    """Check a corpus, write the report into `args.out`, and return the results.

    `inputs` is the result of `check_start`, which is called here if it is None. `save_interval` is the number
    of rows after which the scan saves its state. Raises DataError, with the remedy, if a file cannot be read,
    or if it has unusable rows and --skip-bad-rows is not given; raises RunError if a server does not answer.
    In both cases no report is written, but finished searches and the state of the scan are kept for the next
    run. Raises OSError if `args.out` cannot be written.
    """
    inputs = inputs or check_start(args)
    questions = inputs.questions.questions
    titles, bad_redirects = _read_titles(args, questions)
    answers = AnswerMatcher(gold for question in questions for _, golds in question.parts for gold in golds)
    retrieved = _search(args, questions, answers)
    ids = frozenset(passage_id for question in questions for passage_id in question.ids)
    targets = ScanTargets(ids, titles, answers, _first_hits(retrieved))
    scan = _scan(args, inputs.corpus, targets, save_interval)
    foreign = _sources_with_foreign_ids(args, questions, scan)
    findings = CorpusFindings(scan, titles, retrieved.get("retriever"), retrieved.get("bm25"), foreign)
    judged = judge_questions(questions, findings)
    summary = report.summarise(judged, findings, report.make_notes(questions, findings, args.ids))
    missing = report.missing_evidence(judged)
    repaired = _write_repaired(args, inputs, missing) if args.supply else None
    report.write_report(args.out, judged, summary)
    supply_paragraphs = write_supply(args.questions, _missing_names(missing, "title"), args.out / SUPPLY)
    bad = inputs.questions.bad + bad_redirects + scan.bad + (repaired.bad if repaired else BadRows())
    return CheckResult(judged, summary, repaired, supply_paragraphs, bad)


def _read_titles(args: CheckArguments, questions: Sequence[CorpusQuestion]) -> tuple[TitleIndex, BadRows]:
    """Return the titles that the questions name, with their redirects, and the bad rows of the redirects.

    Raises DataError for bad rows unless these may be left out.
    """
    bad = BadRows()
    titles = TitleIndex(title for question in questions for title in question.titles)
    if args.redirects:
        titles.add_redirects(read_redirects(args.redirects, bad, progress=not args.no_progress))
        bad.refuse(args.skip_bad_rows, "no report was written")
    return titles, bad


def _scan(args: CheckArguments, corpus: Corpus, targets: ScanTargets, save_interval: int) -> ScanResult:
    """Scan the corpus. Raises DataError for bad rows, repeated ids, and a corpus without passages."""
    state = args.out / "scan.json"
    scan = scan_corpus(corpus, targets, state, interval=save_interval, progress=not args.no_progress)
    scan.bad.refuse(args.skip_bad_rows, "no report was written")
    if scan.repeated.count:
        raise DataError(f"no report was written: {refusal(scan.repeated)}")
    if not scan.passages:
        raise DataError(f"{', '.join(map(str, args.corpus))}: no passage in it: give another corpus")
    return scan


def _write_repaired(
    args: CheckArguments, inputs: CorpusInputs, missing: Sequence[dict[str, Any]]
) -> RepairResult:
    """Write the repaired corpus, which is the corpus and the supplied passages that it lacks."""
    return repair(
        inputs.corpus,
        inputs.supply,
        args.out / REPAIRED,
        ids=_missing_names(missing, "id"),
        titles=_missing_names(missing, "title"),
        skip_bad_rows=args.skip_bad_rows,
        progress=not args.no_progress,
    )


def _missing_names(missing: Sequence[dict[str, Any]], key: str) -> list[str]:
    """Return the ids, or the titles, of missing evidence; `key` is "id" or "title"."""
    return [row[key] for row in missing if key in row]


def _search(
    args: CheckArguments, questions: Sequence[CorpusQuestion], answers: AnswerMatcher
) -> dict[ServerName, RetrievalResults]:
    """Search each server whose address is given for all questions. Returns the results by the server's
    name; raises RunError and OSError as `retrieve` does."""
    progress = not args.no_progress
    return {
        server.name: retrieve(questions, answers, server.config, server.results_file, progress=progress)
        for server in args.servers()
    }


def _first_hits(retrieved: dict[ServerName, RetrievalResults]) -> frozenset[str]:
    """Return ids of passages that the servers ranked first. If the scan does not find them, the servers
    probably serve another corpus."""
    ids = {result.ids[0] for results in retrieved.values() for result in results.values() if result.ids}
    return frozenset(sorted(filter(None, ids))[:_MAX_FIRST_HITS])


def _sources_with_foreign_ids(
    args: CheckArguments, questions: Sequence[CorpusQuestion], scan: ScanResult
) -> frozenset[str]:
    """Return the sources whose supporting ids are ignored, as --ids says."""
    if args.ids == "trust":
        return frozenset()
    if args.ids == "ignore":
        return frozenset(question.source for question in questions if question.ids)
    return foreign_sources(questions, scan)
