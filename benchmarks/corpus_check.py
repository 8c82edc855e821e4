"""Measures how well `rag-r1 corpus check` finds and repairs passages that were deleted from a corpus.

    python benchmarks/corpus_check.py --corpus corpus.jsonl.gz --questions questions.jsonl --work checks

Questions are JSONL with {"id", "question", "golden_answers", "supporting_ids": [corpus id, ...]}. The
benchmark deletes 300 supporting passages (--deleted, --seed) from the corpus; a question is affected if it
needs one of them. Then it runs the check as a user would, and compares the verdicts with the truth:

    evidence   number of affected questions that are found, and of others that are flagged, with ids as
               evidence and with titles in several spellings
    strings    precision and recall of the signals for data without evidence
    repair     recall of the supporting passages, by BM25 on the real retrieval server, in the whole, the cut
               and the repaired corpus

--invented N ... also checks a corpus of N invented passages of 100 words each, and measures time and memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rag_r1.corpus.answer_matcher import AnswerMatcher  # noqa: E402
from rag_r1.corpus.arguments import CheckArguments  # noqa: E402
from rag_r1.corpus.check import CheckResult, check_corpus  # noqa: E402
from rag_r1.corpus.reader import Corpus, Passage  # noqa: E402
from rag_r1.corpus.scan import ScanTargets, scan_corpus  # noqa: E402
from rag_r1.corpus.title_index import TitleIndex  # noqa: E402
from rag_r1.runs.markdown import print_table  # noqa: E402
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process  # noqa: E402

#: Rules (verdict.py) by which evidence flags a question.
FLAGS = ("ids_missing", "titles_missing", "titles_similar")
_WIDE = {chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)}


def decomposed(title: str) -> str:
    """Return the title in NFD, with other dashes, curly quotes and no-break spaces."""
    text = unicodedata.normalize("NFD", title).replace("-", "\u2011").replace("–", "\u2212")
    return text.replace("'", "\u2019").replace('"', "\u201d").replace(" ", "\u00a0")


def full_width(title: str) -> str:
    """Return the title in full-width letters, which NFKC maps to ordinary ones."""
    return "".join(_WIDE.get(character, character) for character in title)


SPELLINGS: dict[str, Callable[[str], str]] = {
    "as in the corpus": lambda title: title,
    "NFD, other dashes, quotes, blanks": decomposed,
    "full width": full_width,
    "lower case": str.lower,
    "upper case": str.upper,
    "underscores": lambda title: title.replace(" ", "_"),
    "underscores, lower case, NFD": lambda title: decomposed(title.replace(" ", "_").lower()),
}


@dataclass
class Setting:
    """The corpora and the questions of the benchmark."""

    #: The whole corpus.
    whole: Path
    #: The corpus without the deleted passages.
    cut: Path
    #: The deleted passages.
    deleted: Path
    questions: list[dict[str, Any]]
    #: Passage id -> title, for the supporting passages.
    titles: dict[str, str]
    #: Ids of the questions that need a deleted passage.
    affected: set[str]


def prepare(corpus: Path, questions: Path, work: Path, n_deleted: int, seed: int) -> Setting:
    """Draw the passages to delete, and write the corpora into the folder `work`.

    Raises SystemExit if the corpus lacks a supporting passage, and unless `n_deleted` is above 0 and at most
    the number of these passages.
    """
    with questions.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    gold_ids = {passage_id for row in rows for passage_id in row["supporting_ids"]}
    if not 1 <= n_deleted <= len(gold_ids):
        raise SystemExit(f"error: --deleted must be 1 to {len(gold_ids)}, all supporting passages")
    deleted_ids = set(random.Random(seed).sample(sorted(gold_ids), n_deleted))
    passages = [row for row, _ in Corpus([corpus]).rows(progress=False) if isinstance(row, Passage)]
    if unknown := gold_ids - {passage.id for passage in passages}:
        raise SystemExit(f"error: {corpus} has no passage {min(unknown)}: give the corpus of the questions")
    work.mkdir(parents=True, exist_ok=True)
    kept = [passage for passage in passages if passage.id not in deleted_ids]
    deleted = [passage for passage in passages if passage.id in deleted_ids]
    corpora = {"whole": passages, "cut": kept, "deleted": deleted}
    paths = [write(work / f"{name}.jsonl", (p.row() for p in subset)) for name, subset in corpora.items()]
    titles = {str(passage.id): passage.title or "" for passage in passages if passage.id in gold_ids}
    affected = {row["id"] for row in rows if deleted_ids & set(row["supporting_ids"])}
    return Setting(*paths, rows, titles, affected)


def write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write JSON lines, and return the path."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return path


def run_check(
    work: Path, name: str, corpus: Path, rows: Iterable[dict[str, Any]], **options: Any
) -> CheckResult:
    """Run one check with its files in `work`/`name`; `options` are further fields of CheckArguments."""
    out = work / name.replace(" ", "_").replace(",", "")
    out.mkdir(parents=True, exist_ok=True)
    data = write(out / "questions.jsonl", rows)
    arguments = CheckArguments(questions=[data], corpus=[corpus], out=out, no_progress=True, **options)
    return check_corpus(arguments)


def without_evidence(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a question without its supporting ids."""
    return {key: row[key] for key in ("id", "question", "golden_answers")}


def with_titles(setting: Setting, spelling: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return the questions with titles in a spelling, instead of supporting ids."""
    rows = []
    for row in setting.questions:
        titles = [spelling(setting.titles[passage_id]) for passage_id in row["supporting_ids"]]
        rows.append({**without_evidence(row), "supporting_titles": titles})
    return rows


def evidence_rows(setting: Setting, work: Path) -> list[tuple[str, int, int, int]]:
    """Check the cut corpus with each kind of evidence.

    Returns rows of (evidence, affected questions found, those found only through a similar title, others
    flagged).
    """
    redirects = work / "redirects.tsv"
    titles = sorted(setting.titles.values())
    former_names = {title: f"Former name {index}" for index, title in enumerate(titles)}
    lines = (f"{name}\t{title}\n" for title, name in former_names.items())
    redirects.write_text("".join(lines), encoding="utf-8")
    checks = {"ids": run_check(work, "ids", setting.cut, setting.questions)}
    for name, spelling in SPELLINGS.items():
        checks[f"titles: {name}"] = run_check(work, name, setting.cut, with_titles(setting, spelling))
    renamed = with_titles(setting, former_names.__getitem__)
    checks["titles: redirects"] = run_check(work, "redirects", setting.cut, renamed, redirects=redirects)
    rows = []
    for name, check in checks.items():
        flagged = {case.question.id: case.rule.name for case in check.judged if case.rule.name in FLAGS}
        correct = set(flagged) & setting.affected
        similar = sum(flagged[question_id] == "titles_similar" for question_id in correct)
        rows.append((name, len(correct), similar, len(set(flagged) - setting.affected)))
    return rows


def string_rows(setting: Setting, check: CheckResult) -> list[tuple[str, int, float, float]]:
    """Return rows of (signal, flagged questions, precision, recall) for a check of data without evidence."""
    judged = check.judged
    signals = {
        "answer not in BM25's first k": [case for case in judged if not case.signals.in_top_k],
        "answer nowhere in the corpus": [case for case in judged if case.signals.anywhere == "no"],
        "verdict unanswerable": [case for case in judged if case.rule.verdict == "unanswerable"],
        "verdict unanswerable or unknown": [case for case in judged if case.rule.verdict != "answerable"],
    }
    rows = []
    for name, cases in signals.items():
        flagged = {case.question.id for case in cases}
        correct = len(flagged & setting.affected)
        recall = correct / max(len(setting.affected), 1)
        rows.append((name, len(flagged), correct / max(len(flagged), 1), recall))
    return rows


def with_server(corpus: Path, work: Path, name: str, use: Callable[[str], CheckResult]) -> CheckResult:
    """Build a BM25 index of the corpus, serve it, and return the result of `use` for the server's URL."""
    index = work / "indexes" / name
    if not index.exists():
        build_index(corpus, index, "--backend", "bm25")
    with retrieval_process(index, work / f"{name}.log") as url:
        return use(url)


def recall_table(
    setting: Setting, work: Path, k: int
) -> tuple[list[tuple[str, int, float, float]], CheckResult]:
    """Check the whole, the cut and the repaired corpus with a retrieval server.

    Returns rows of (corpus, passages, recall of the supporting passages, share of answerable questions), and
    the check of the cut corpus without evidence.
    """
    checks: dict[str, CheckResult] = {}

    def check(name: str, corpus: Path, url: str, **options: Any) -> CheckResult:
        rows = setting.questions
        checks[name] = run_check(work, f"of {name}", corpus, rows, bm25_url=url, topk=k, **options)
        return checks[name]

    def check_cut(url: str) -> CheckResult:
        check("cut", setting.cut, url, supply=[setting.deleted])
        questions = map(without_evidence, setting.questions)
        return run_check(work, "blind", setting.cut, questions, bm25_url=url, topk=k)

    with_server(setting.whole, work, "whole", lambda url: check("whole", setting.whole, url))
    without = with_server(setting.cut, work, "cut", check_cut)
    repaired = checks["cut"].repaired
    assert repaired is not None
    with_server(repaired.path, work, "repaired", lambda url: check("repaired", repaired.path, url))
    table = []
    for name, result in checks.items():
        counts = result.summary["all"]
        share = counts["answerable"] / counts["questions"]
        table.append((name, result.summary["passages"], counts["bm25_recall"], share))
    return table, without


def passages_per_second(setting: Setting, work: Path) -> float:
    """Return the passages that a scan for all ids, titles and answers reads per second of processor time."""
    targets = ScanTargets(
        ids=frozenset(passage_id for row in setting.questions for passage_id in row["supporting_ids"]),
        titles=TitleIndex(setting.titles.values()),
        answers=AnswerMatcher(gold for row in setting.questions for gold in row["golden_answers"]),
    )
    state = work / "timed.json"
    state.unlink(missing_ok=True)
    started = time.process_time()
    scan = scan_corpus(Corpus([setting.whole]), targets, state, progress=False)
    return scan.passages / (time.process_time() - started)


def invent(path: Path, n: int, words: list[str]) -> Path:
    """Write n passages of 100 random words each, three to a page, and return the path."""
    draw = random.Random(n)

    def rows() -> Iterator[dict[str, Any]]:
        for index in range(n):
            text = " ".join(draw.choices(words, k=100))
            yield {"id": str(index), "contents": f'"Page {index // 3}"\n{text}'}

    return write(path, rows())


def measure_check(setting: Setting, work: Path, n: int) -> tuple[float, float, float]:
    """Run the command on n invented passages; returns size in GB, processor seconds, and peak resident MB.

    Raises RuntimeError if the command fails.
    """
    words = sorted({word for title in setting.titles.values() for word in title.split()})
    corpus = invent(work / f"invented_{n}.jsonl", n, words)
    data = write(work / "invented_questions.jsonl", setting.questions)
    command = [sys.executable, "-m", "rag_r1.cli", "corpus", "check", "--no-progress", "--ids", "trust"]
    command += ["--data", str(data), "--corpus", str(corpus), "--out", str(work / f"invented_{n}")]
    process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[1], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # wait4 has reaped the process
    if status:
        raise RuntimeError(f"the check of {corpus} ended with status {process.returncode}; see above")
    size = corpus.stat().st_size / 1e9
    corpus.unlink()
    return size, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its tables; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE", help="the whole corpus")
    parser.add_argument("--questions", type=Path, required=True, metavar="FILE", help="see above")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder for what is made")
    parser.add_argument("--deleted", type=int, default=300, help="passages to delete (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default %(default)s)")
    parser.add_argument("--k", type=int, default=10, help="passages of a search (default %(default)s)")
    parser.add_argument("--no-server", action="store_true", help="only what needs no retrieval server")
    parser.add_argument("--invented", type=int, nargs="+", default=[], metavar="N", help="see above")
    args = parser.parse_args(argv)
    args.work = args.work.resolve()
    setting = prepare(args.corpus, args.questions, args.work, args.deleted, args.seed)
    n_affected = len(setting.affected)
    print(f"{len(setting.questions)} questions, {n_affected} affected by {args.deleted} deleted passages\n")
    found = evidence_rows(setting, args.work)
    rows = ((name, f"{count} ({count / n_affected:.1%})", *others) for name, count, *others in found)
    head = ["evidence", "affected, found", "of these by a similar title only", "others, flagged"]
    print_table(head, rows)
    if not args.no_server:
        recalls, strings = recall_table(setting, args.work, args.k)
        signals = string_rows(setting, strings)
        rows = ((name, count, *(f"{share:.1%}" for share in shares)) for name, count, *shares in signals)
        print()
        print_table(["signal", "flagged", "precision", "recall"], rows)
        rows = ((name, f"{n:,}", *(f"{share:.1%}" for share in shares)) for name, n, *shares in recalls)
        print()
        print_table(["corpus", "passages", f"recall@{args.k} of supporting passages", "answerable"], rows)
    print(f"\n{passages_per_second(setting, args.work):,.0f} passages scanned in a second of processor time")
    if args.invented:
        print()
        measured = ((n, *measure_check(setting, args.work, n)) for n in args.invented)
        rows = ((f"{n:,}", f"{size:.2f} GB", f"{s:,.1f}", f"{mb:,.0f} MB") for n, size, s, mb in measured)
        print_table(["invented passages", "size", "processor s", "peak resident"], rows, "rrrr")
    return 0


if __name__ == "__main__":
    sys.exit(main())
