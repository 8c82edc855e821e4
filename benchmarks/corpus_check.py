"""Finds deleted gold passages with `rag-r1 corpus check`, and repairs the corpus.

    python benchmarks/corpus_check.py --corpus corpus.jsonl.gz --questions questions.jsonl --work checks

Questions are JSONL with {"id", "question", "golden_answers", "supporting_ids": [corpus id, ...]}. 300
supporting passages (--deleted, --seed) are deleted from the corpus; a question is affected if it needs one of
these. Then the check is run as a user runs it, and what it says is compared with the truth:

    evidence   by ids, and by titles in several spellings: how many affected questions are found, and how many
               others are flagged
    strings    the signals for data without evidence: precision and recall for "not answerable any more"
    repair     recall of the supporting passages, BM25 through the real retrieval server: whole, cut, repaired

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

#: Rules (verdict.py) by which evidence flags a question.
FLAGS = ("ids_missing", "titles_missing", "titles_similar")
_WIDE = {chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)}


def decomposed(title: str) -> str:
    """The title in NFD, with another dash, curly quotes and no-break spaces."""
    text = unicodedata.normalize("NFD", title).replace("-", "\u2011").replace("–", "\u2212")
    return text.replace("'", "\u2019").replace('"', "\u201d").replace(" ", "\u00a0")


def full_width(title: str) -> str:
    """The title in full-width letters, which NFKC makes ordinary ones."""
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
    """The corpus with and without the deleted passages, and the questions."""

    whole: Path
    cut: Path
    deleted: Path
    questions: list[dict[str, Any]]
    titles: dict[str, str]
    affected: set[str]


def prepare(corpus: Path, questions: Path, work: Path, n_deleted: int, seed: int) -> Setting:
    """Draw the passages to delete, and write the two corpora."""
    rows = [json.loads(line) for line in questions.open(encoding="utf-8")]
    gold = sorted({own_id for row in rows for own_id in row["supporting_ids"]})
    gone = set(random.Random(seed).sample(gold, n_deleted))
    passages = [row for row, _ in Corpus([corpus]).rows(progress=False) if isinstance(row, Passage)]
    work.mkdir(parents=True, exist_ok=True)
    paths = [work / f"{name}.jsonl" for name in ("whole", "cut", "deleted")]
    kept = [passage for passage in passages if passage.id not in gone]
    write(paths[0], (passage.row() for passage in passages))
    write(paths[1], (passage.row() for passage in kept))
    write(paths[2], (passage.row() for passage in passages if passage.id in gone))
    titles = {str(passage.id): passage.title or "" for passage in passages if passage.id in set(gold)}
    affected = {row["id"] for row in rows if gone & set(row["supporting_ids"])}
    return Setting(*paths, rows, titles, affected)


def write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return path


def run_check(
    work: Path, name: str, corpus: Path, rows: Iterable[dict[str, Any]], **more: Any
) -> CheckResult:
    """Run one check, whose files are in `work`/`name`."""
    out = work / name.replace(" ", "_").replace(",", "")
    out.mkdir(parents=True, exist_ok=True)
    data = write(out / "questions.jsonl", rows)
    return check_corpus(CheckArguments(questions=[data], corpus=[corpus], out=out, no_progress=True, **more))


def without_evidence(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("id", "question", "golden_answers")}


def with_titles(setting: Setting, spelling: Callable[[str], str]) -> list[dict[str, Any]]:
    """The questions with titles instead of ids."""
    return [
        {
            **without_evidence(row),
            "supporting_titles": [spelling(setting.titles[own_id]) for own_id in row["supporting_ids"]],
        }
        for row in setting.questions
    ]


def evidence_rows(setting: Setting, work: Path) -> list[tuple[str, int, int, int]]:
    """(evidence, affected questions found, of these only through a similar title, others flagged)."""
    redirects = work / "redirects.tsv"
    names = {title: f"Former name {number}" for number, title in enumerate(sorted(setting.titles.values()))}
    redirects.write_text("".join(f"{name}\t{title}\n" for title, name in names.items()), encoding="utf-8")
    checks = {"ids": run_check(work, "ids", setting.cut, setting.questions)}
    for name, spelling in SPELLINGS.items():
        checks[f"titles: {name}"] = run_check(work, name, setting.cut, with_titles(setting, spelling))
    renamed = with_titles(setting, names.__getitem__)
    checks["titles: redirects"] = run_check(work, "redirects", setting.cut, renamed, redirects=redirects)
    rows = []
    for name, done in checks.items():
        flagged = {case.question.id: case.rule.name for case in done.judged if case.rule.name in FLAGS}
        correct = set(flagged) & setting.affected
        similar = sum(flagged[own_id] == "titles_similar" for own_id in correct)
        rows.append((name, len(correct), similar, len(set(flagged) - setting.affected)))
    return rows


def string_rows(setting: Setting, done: CheckResult) -> list[tuple[str, int, float, float]]:
    """(signal, questions that it flags, precision, recall), of a check of data without evidence."""
    judged = done.judged
    signals = {
        "answer not in BM25's first k": {case.question.id for case in judged if not case.signals.in_top_k},
        "answer nowhere in the corpus": {
            case.question.id for case in judged if case.signals.anywhere == "no"
        },
        "verdict unanswerable": {case.question.id for case in judged if case.rule.verdict == "unanswerable"},
        "verdict unanswerable or unknown": {
            case.question.id for case in judged if case.rule.verdict != "answerable"
        },
    }
    rows = []
    for name, flagged in signals.items():
        right = len(flagged & setting.affected)
        rows.append((name, len(flagged), right / max(len(flagged), 1), right / max(len(setting.affected), 1)))
    return rows


def served(corpus: Path, work: Path, name: str, use: Callable[[str], CheckResult]) -> CheckResult:
    """Build a BM25 index of the corpus, serve it, and use the server."""
    from rag_r1.tools.retrieval.local_server import build_index, retrieval_process

    index = work / "indexes" / name
    if not index.exists():
        build_index(corpus, index, "--backend", "bm25")
    with retrieval_process(index, work / f"{name}.log") as url:
        return use(url)


def recall_table(
    setting: Setting, work: Path, k: int
) -> tuple[list[tuple[str, int, float, float]], CheckResult]:
    """(corpus, passages, recall of the supporting passages, share of answerable questions), and the check of
    the cut corpus without evidence."""
    table = []

    def asks(
        corpus: Path, name: str, rows: Iterable[dict[str, Any]], **more: Any
    ) -> Callable[[str], CheckResult]:
        return lambda url: run_check(work, name, corpus, rows, bm25_url=url, topk=k, **more)

    def note(name: str, done: CheckResult) -> None:
        counts = done.summary["all"]
        share = counts["answerable"] / counts["questions"]
        table.append((name, done.summary["passages"], counts["bm25_recall"], share))

    note("whole", served(setting.whole, work, "whole", asks(setting.whole, "of whole", setting.questions)))
    cut = asks(setting.cut, "of cut", setting.questions, supply=[setting.deleted])
    blind = asks(setting.cut, "blind", map(without_evidence, setting.questions))
    both: list[CheckResult] = []
    strings = served(setting.cut, work, "cut", lambda url: both.append(cut(url)) or blind(url))
    note("cut", both[0])
    made = both[0].repaired
    assert made is not None
    after = served(made.path, work, "repaired", asks(made.path, "of repaired", setting.questions))
    note("repaired", after)
    return table, strings


def passages_a_second(setting: Setting, work: Path) -> float:
    """Passages that a scan reads in a second of processor time, with all ids, titles and answers."""
    targets = ScanTargets(
        ids=frozenset(own_id for row in setting.questions for own_id in row["supporting_ids"]),
        titles=TitleIndex(setting.titles.values()),
        answers=AnswerMatcher(gold for row in setting.questions for gold in row["golden_answers"]),
    )
    state = work / "timed.json"
    state.unlink(missing_ok=True)
    started = time.process_time()
    scan = scan_corpus(Corpus([setting.whole]), targets, state, progress=False)
    return scan.passages / (time.process_time() - started)


def invent(path: Path, n: int, words: list[str]) -> Path:
    """Write n passages of 100 random words, three to a page."""
    draw = random.Random(n)

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(n):
            text = " ".join(draw.choices(words, k=100))
            yield {"id": str(number), "contents": f'"Page {number // 3}"\n{text}'}

    return write(path, rows())


def measured(setting: Setting, work: Path, n: int) -> tuple[float, float, float]:
    """(size in GB, processor seconds, peak resident MB) of a check of n invented passages, as a command."""
    words = sorted({word for title in setting.titles.values() for word in title.split()})
    corpus = invent(work / f"invented_{n}.jsonl", n, words)
    data = write(work / "invented_questions.jsonl", setting.questions)
    command = [sys.executable, "-m", "rag_r1.cli", "corpus", "check", "--no-progress", "--ids", "trust"]
    command += ["--data", str(data), "--corpus", str(corpus), "--out", str(work / f"invented_{n}")]
    process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[1], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
    if status:
        raise RuntimeError(f"the check of {corpus} failed")
    size = corpus.stat().st_size / 1e9
    corpus.unlink()
    return size, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main(argv: list[str] | None = None) -> int:
    """Measure as the command line says, and print the tables; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE")
    parser.add_argument("--questions", type=Path, required=True, metavar="FILE")
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
    rows = (
        (name, f"{count} ({count / n_affected:.1%})", *others)
        for name, count, *others in evidence_rows(setting, args.work)
    )
    head = ["evidence", "affected, found", "of these by a similar title only", "others, flagged"]
    print_table(head, rows)
    if not args.no_server:
        recalls, strings = recall_table(setting, args.work, args.k)
        signals = string_rows(setting, strings)
        rows = (
            (name, flagged, f"{share:.1%}", f"{other_share:.1%}")
            for name, flagged, share, other_share in signals
        )
        print()
        print_table(["signal", "flagged", "precision", "recall"], rows)
        rows = (
            (name, f"{count:,}", f"{share:.1%}", f"{other_share:.1%}")
            for name, count, share, other_share in recalls
        )
        print()
        print_table(["corpus", "passages", f"recall@{args.k} of supporting passages", "answerable"], rows)
    print(f"\n{passages_a_second(setting, args.work):,.0f} passages scanned in a second of processor time")
    if args.invented:
        print()
        measurements = ((n, *measured(setting, args.work, n)) for n in args.invented)
        rows = (
            (f"{n:,}", f"{size:.2f} GB", f"{s:,.1f}", f"{peak:,.0f} MB") for n, size, s, peak in measurements
        )
        print_table(["invented passages", "size", "processor s", "peak resident"], rows, "rrrr")
    return 0


if __name__ == "__main__":
    sys.exit(main())
