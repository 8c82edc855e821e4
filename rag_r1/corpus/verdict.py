"""The verdict on a question: answerable, unanswerable or unknown, by the first rule that applies.

`RULES` holds all rules, and docs/guides/corpora.md shows the same table. Evidence that the data set
names decides where there is any. The answer's string decides only where there is none, because a text with
that string can say something else. Every signal is reported on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rag_r1.corpus.answer_matcher import COMMON_SHARE, MIN_COMMON, AnswerMatcher, answer_tokens, weak_reason
from rag_r1.corpus.questions import CorpusQuestion
from rag_r1.corpus.retrieval_check import RetrievalResults
from rag_r1.corpus.scan import ScanResult
from rag_r1.corpus.title_index import STRONG, TitleIndex

VERDICTS = ("answerable", "unanswerable", "unknown")


@dataclass(frozen=True)
class QuestionSignals:
    """The signals of one question. A signal is None if the data set names no such evidence, or the server was
    not asked or did not answer."""

    #: Supporting ids that are not in the corpus.
    ids_missing: tuple[str, ...] | None = None
    #: Supporting titles -> level of their match (title_index.py), None for a missing one.
    titles: dict[str, str | None] | None = None
    #: Rank of the first passage with a gold answer; 0 if there is none in the first k.
    retriever_rank: int | None = None
    bm25_rank: int | None = None
    #: The gold answers in the corpus: a distinctive one, only weak ones, or none.
    anywhere: Literal["distinctive", "weak", "no"] = "no"
    #: Why the answers in the corpus, or without any there all answers, are weak: number, short, common,
    #: yes_no, empty, long.
    weak: tuple[str, ...] = ()
    #: Number of passages with the most frequent of these answers, and the id of the first one.
    passages: int = 0
    passage: str | None = None

    @property
    def in_top_k(self) -> bool:
        """Whether either server found a gold answer."""
        return bool(self.retriever_rank) or bool(self.bm25_rank)


@dataclass(frozen=True)
class VerdictRule:
    """A rule: its name, the condition in words and as a function, and the verdict."""

    name: str
    when: str
    applies: Callable[[QuestionSignals], bool]
    verdict: Literal["answerable", "unanswerable", "unknown"]


RULES = (
    VerdictRule(
        "ids_present",
        "the data names passages by id, and all are in the corpus",
        lambda s: s.ids_missing == (),
        "answerable",
    ),
    VerdictRule(
        "ids_missing", "at least one of these ids is not", lambda s: bool(s.ids_missing), "unanswerable"
    ),
    VerdictRule(
        "titles_missing",
        "the data names pages by title, and at least one is in the corpus in no variant",
        lambda s: bool(s.titles) and None in s.titles.values(),
        "unanswerable",
    ),
    VerdictRule(
        "titles_similar",
        "at least one is there only under a similar title (a weak variant)",
        lambda s: bool(s.titles) and not set(s.titles.values()) <= set(STRONG),
        "unknown",
    ),
    VerdictRule("titles_present", "all of them are in the corpus", lambda s: bool(s.titles), "answerable"),
    VerdictRule(
        "yes_or_no",
        "no evidence is named (nor for the rules below), and the answer is yes or no",
        lambda s: s.weak == ("yes_no",),
        "unknown",
    ),
    VerdictRule(
        "no_string",
        "the answer cannot be looked for: it is longer than 32 words, or has no letter or digit",
        lambda s: bool(s.weak) and set(s.weak) <= {"empty", "long"},
        "unknown",
    ),
    VerdictRule(
        "in_top_k",
        "a gold answer stands in the first k passages of the retriever, or of BM25",
        lambda s: s.in_top_k,
        "answerable",
    ),
    VerdictRule(
        "anywhere",
        "a gold answer stands in some passage",
        lambda s: s.anywhere == "distinctive",
        "answerable",
    ),
    VerdictRule(
        "anywhere_weak",
        "the same, but it is a number, has at most three letters, or is common: in more than 20 passages and "
        "in more than 1 of 1,000",
        lambda s: s.anywhere == "weak",
        "unknown",
    ),
    VerdictRule("nowhere", "no gold answer stands in any passage", lambda s: True, "unanswerable"),
)


def rule_of(signals: QuestionSignals) -> VerdictRule:
    """The first rule that applies; the last one always does."""
    return next(rule for rule in RULES if rule.applies(signals))


@dataclass(frozen=True)
class CorpusFindings:
    """The results for all questions, which `signals_of` reads."""

    scan: ScanResult
    titles: TitleIndex
    answers: AnswerMatcher
    retriever: RetrievalResults | None = None
    bm25: RetrievalResults | None = None
    #: Sources whose ids are of another corpus and therefore say nothing of this one.
    foreign: frozenset[str] = frozenset()


def foreign_sources(questions: Sequence[CorpusQuestion], scan: ScanResult) -> frozenset[str]:
    """The sources of which not a single supporting id is in the corpus, though they have some."""
    sources = {question.source for question in questions if question.ids}
    return frozenset(sources - {question.source for question in questions if scan.ids & {*question.ids}})


def signals_of(question: CorpusQuestion, findings: CorpusFindings) -> QuestionSignals:
    """The signals of one question; those of its answer are the weakest among its parts."""
    parts = [_anywhere(golds, findings.scan) for _, golds in question.parts]
    order = ("no", "weak", "distinctive")
    worst = min(parts, key=lambda part: (order.index(part[0]), part[2]))
    missing = tuple(name for name in question.ids if name not in findings.scan.ids)
    return QuestionSignals(
        missing if question.ids and question.source not in findings.foreign else None,
        {title: findings.titles.level(title) for title in question.titles} or None,
        _rank(question, findings.retriever),
        _rank(question, findings.bm25),
        *worst,
    )


def _rank(question: CorpusQuestion, retrieved: RetrievalResults | None) -> int | None:
    """`retriever_rank` or `bm25_rank` of QuestionSignals."""
    result = (retrieved or {}).get(question.key)
    return None if result is None else result.rank or 0


def _anywhere(golds: Sequence[str], scan: ScanResult) -> tuple[Any, tuple[str, ...], int, str | None]:
    """`anywhere`, `weak`, `passages` and `passage` of QuestionSignals for one question's gold answers."""
    limit = max(MIN_COMMON, COMMON_SHARE * scan.passages)
    reasons: dict[bool, set[str]] = {True: set(), False: set()}  # of golds in the corpus, and of others
    best: dict[bool, tuple[int, str | None]] = {}  # distinctive -> most passages
    for gold in golds:
        tokens = answer_tokens(gold)
        reason = weak_reason(tokens)
        count, first = scan.answers.get(" ".join(tokens), (0, None))
        if reason is None and count > limit:
            reason = "common"
        if reason:
            reasons[count > 0].add(reason)
        if count > best.get(reason is None, (0, None))[0]:
            best[reason is None] = (count, first)
    if True in best:
        return "distinctive", (), *best[True]
    weak = tuple(sorted(reasons[True] or reasons[False]))
    if False in best:
        return "weak", weak, *best[False]
    is_weak = all(weak_reason(answer_tokens(gold)) for gold in golds)
    return "no", weak if is_weak else (), 0, None
