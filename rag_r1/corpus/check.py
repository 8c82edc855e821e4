"""Checks which questions a corpus can answer, and writes the report.

The steps: read the questions; ask the retrieval server (retrieval_check.py); scan the corpus once for all
ids, titles and answers (scan.py); judge (verdict.py); write the report (report.py) and, with --supply, a
repaired corpus (repair/). The first two long steps keep their results in the output folder, so the same
command continues after a kill, and repeats nothing if only --supply is added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rag_r1.corpus import report
from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.arguments import CheckArguments
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
from rag_r1.corpus.verdict import CorpusFindings, foreign_sources
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.io.errors import DataError
from rag_r1.options.out_folder import check_out
from rag_r1.runs.start_checks import StartChecks, try_servers

#: The paragraphs of missing pages that the data files hold.
SUPPLY = "supply.jsonl"
#: First hits of the servers that are looked for in the corpus.
_MAX_FIRST_HITS = 1000


@dataclass
class CheckResult:
    """A finished check."""

    judged: list[report.QuestionVerdict]
    summary: dict[str, Any]
    repaired: RepairResult | None
    #: Number of paragraphs in `SUPPLY`.
    offered: int
    #: Rows that were left out, of all files.
    bad: BadRows


def check_start(args: CheckArguments) -> CorpusInputs:
    """Check files, folder and servers, and return what the files hold. A server is tried if it has not
    answered an earlier run. Raises StartError with all problems."""
    with StartChecks() as checks:
        checks.run(check_out, args.out, "rag-r1 corpus check")
        inputs = read_inputs(
            checks, args.questions, args.corpus, args.supply, skip_bad_rows=args.skip_bad_rows
        )
        if args.redirects:
            checks.run(check_redirects, args.redirects)
    assert inputs is not None  # otherwise the block has raised StartError
    attempts = [
        try_server(config, flag)
        for flag, config, results_file in args.servers()
        if args.check_only or not results_file.exists()
    ]
    asyncio.run(try_servers(*attempts))
    return inputs


def check_corpus(
    args: CheckArguments, inputs: CorpusInputs | None = None, *, save_interval: int = SAVE_INTERVAL
) -> CheckResult:
    """Check a corpus and write the report into `args.out`. `inputs`: the result of `check_start`, which is
    called here if it is None.

    Raises DataError, with the remedy, if a file cannot be read, or has rows that cannot be used and are not
    to be left out; RunError if a server answers nothing. No report is written then, but the results of the
    finished searches and of the scan remain for the next run.
    """
    inputs = inputs or check_start(args)
    questions = inputs.questions.questions
    bad_redirects = BadRows()
    titles = _read_titles(args, questions, bad_redirects)
    answers = AnswerMatcher(gold for question in questions for _, golds in question.parts for gold in golds)
    retrieved = _search(args, questions, answers)
    ids = frozenset(passage_id for question in questions for passage_id in question.ids)
    targets = ScanTargets(ids, titles, answers, _first_hits(retrieved))
    scan = _scan(args, inputs.corpus, targets, save_interval)
    foreign = _sources_with_foreign_ids(args, questions, scan)
    findings = CorpusFindings(scan, titles, answers, foreign=foreign, **retrieved)
    judged = report.judge_questions(questions, findings)
    summary = report.summarise(judged, findings, _notes(questions, findings, retrieved, args))
    missing = report.missing_evidence(judged)
    repaired = _write_repaired(args, inputs, missing) if args.supply else None
    report.write_report(args.out, judged, summary)
    offered = write_supply(args.questions, _missing_names(missing, "title"), args.out / SUPPLY)
    bad = inputs.questions.bad + bad_redirects + scan.bad + (repaired.bad if repaired else BadRows())
    return CheckResult(judged, summary, repaired, offered, bad)


def _read_titles(args: CheckArguments, questions: Sequence[CorpusQuestion], bad: BadRows) -> TitleIndex:
    """The titles that the questions name, with their redirects; bad rows of these are added to `bad`."""
    titles = TitleIndex(title for question in questions for title in question.titles)
    if args.redirects:
        titles.add_redirects(read_redirects(args.redirects, bad, progress=not args.no_progress))
        bad.refuse(args.skip_bad_rows, "no report was written")
    return titles


def _scan(args: CheckArguments, corpus: Corpus, targets: ScanTargets, save_interval: int) -> ScanResult:
    """Scan the corpus. Raises DataError for bad rows, repeated ids, and a corpus without a passage."""
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
    """Write the corpus with the supplied passages that are missing in it."""
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
    """The ids, or the titles, of missing evidence."""
    return [row[key] for row in missing if key in row]


def _search(
    args: CheckArguments, questions: Sequence[CorpusQuestion], answers: AnswerMatcher
) -> dict[str, RetrievalResults]:
    """The results of each server with an address, by its name: "retriever" and "bm25"."""
    return {
        file.stem: retrieve(questions, answers, config, file, progress=not args.no_progress)
        for _, config, file in args.servers()
    }


def _first_hits(retrieved: dict[str, RetrievalResults]) -> frozenset[str]:
    """Ids of passages that the servers returned first: the scan tells whether they serve this corpus."""
    ids = {result.ids[0] for results in retrieved.values() for result in results.values() if result.ids}
    return frozenset(sorted(filter(None, ids))[:_MAX_FIRST_HITS])


def _sources_with_foreign_ids(
    args: CheckArguments, questions: Sequence[CorpusQuestion], scan: ScanResult
) -> frozenset[str]:
    """The sources whose supporting ids are ignored, by --ids."""
    if args.ids == "trust":
        return frozenset()
    if args.ids == "ignore":
        return frozenset(question.source for question in questions if question.ids)
    return foreign_sources(questions, scan)


def _notes(
    questions: Sequence[CorpusQuestion],
    findings: CorpusFindings,
    retrieved: dict[str, RetrievalResults],
    args: CheckArguments,
) -> list[str]:
    """Notes that a reader of the shares must know."""
    notes = []
    if findings.foreign and args.ids == "auto":
        notes.append(
            f"The supporting ids of {len(findings.foreign)} source(s) were ignored: none of them is in the "
            "corpus, so they are those of another one. --ids trust counts them as missing."
        )
    for name, results in retrieved.items():
        if failed := len(questions) - len(results):
            notes.append(f"{failed:,} questions got no answer from the {name}. Run again to ask only these.")
    first_hits = findings.scan.probe
    if foreign := len(first_hits - findings.scan.probe_found):
        notes.append(
            f"{foreign:,} of {len(first_hits):,} passages that the servers returned first are not in this "
            "corpus. Do they serve another one?"
        )
    return notes
