"""Decides whether a corpus can answer a question: answerable, unanswerable or unknown.

The signals of a question are derived from the results of the scan and of the searches (`signals_of`), and the
first rule of `RULES` that applies to them decides. docs/guides/corpora.md shows the same table of rules. If
the data set names evidence, the evidence decides. The string of the answer decides only if it does not,
because a text with that string may say something else. The report has every signal separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

from rag_r1.corpus.answer_matcher import COMMON_SHARE, MIN_COMMON, WeakReason, answer_tokens, weak_reason
from rag_r1.corpus.questions import CorpusQuestion
from rag_r1.corpus.retrieval_check import RetrievalResults
from rag_r1.corpus.scan import ScanResult
from rag_r1.corpus.title_index import STRONG, TitleIndex

Verdict = Literal["answerable", "unanswerable", "unknown"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
#: Why a gold answer that is in the corpus proves little.
Weakness = WeakReason | Literal["common"]


@dataclass(frozen=True)
class QuestionSignals:
    """The signals of one question. A signal is None if the data set names no such evidence, or if the server
    was not used or did not answer."""

    #: Supporting ids that are not in the corpus.
    ids_missing: tuple[str, ...] | None = None
    #: Maps each supporting title to the level of its match (title_index.py), or to None if it is missing.
    titles: dict[str, str | None] | None = None
    #: Rank of the retriever's first passage with a gold answer, from 1; 0 if none of the first k has one.
    retriever_rank: int | None = None
    #: The same for BM25.
    bm25_rank: int | None = None
    #: Whether the corpus contains a distinctive gold answer, only weak ones, or none.
    anywhere: Literal["distinctive", "weak", "no"] = "no"
    #: Why the gold answers in the corpus are weak (or all of them, if the corpus contains none).
    weak: tuple[Weakness, ...] = ()
    #: Number of passages with the most frequent of these answers.
    passages: int = 0
    #: Id of the first of these passages.
    passage: str | None = None

    @property
    def in_top_k(self) -> bool:
        """Whether at least one of the servers found a gold answer."""
        return bool(self.retriever_rank) or bool(self.bm25_rank)


@dataclass(frozen=True)
class VerdictRule:
    """A rule, with its condition in words (`when`) and as a function (`applies`)."""

    name: str
    when: str
    applies: Callable[[QuestionSignals], bool]
    verdict: Verdict


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
        "one of the first k passages of the retriever, or of BM25, contains a gold answer",
        lambda s: s.in_top_k,
        "answerable",
    ),
    VerdictRule(
        "anywhere",
        "some passage contains a gold answer",
        lambda s: s.anywhere == "distinctive",
        "answerable",
    ),
    VerdictRule(
        "anywhere_weak",
        "the same, but the answer is a number, has at most three letters, or is common: in more than 20 "
        "passages and in more than 1 of 1,000",
        lambda s: s.anywhere == "weak",
        "unknown",
    ),
    VerdictRule("nowhere", "no passage contains a gold answer", lambda s: True, "unanswerable"),
)


def rule_of(signals: QuestionSignals) -> VerdictRule:
    """Return the first rule that applies; the last rule always does."""
    return next(rule for rule in RULES if rule.applies(signals))


@dataclass(frozen=True)
class QuestionVerdict:
    """A question with its signals and the rule that decided its verdict."""

    question: CorpusQuestion
    signals: QuestionSignals
    rule: VerdictRule

    def row(self) -> dict[str, Any]:
        """Return the question's line of verdicts.jsonl."""
        source, question_id = self.question.key
        facts = {"source": source, "id": question_id, "verdict": self.rule.verdict, "reason": self.rule.name}
        texts, golds = zip(*self.question.parts, strict=True)
        if len(texts) > 1:
            parts = {"parts": texts, "part_answers": golds}
        else:
            parts = {"question": texts[0], "golden_answers": golds[0]}
        return {**facts, **parts, "signals": asdict(self.signals)}


@dataclass(frozen=True)
class CorpusFindings:
    """The results of the scan and of the searches for all questions."""

    scan: ScanResult
    #: The titles that the questions name, with their matches in the corpus.
    titles: TitleIndex
    #: The results of the server at --retriever-url; None if there is none.
    retriever: RetrievalResults | None = None
    #: The results of the server at --bm25-url; None if there is none.
    bm25: RetrievalResults | None = None
    #: Sources whose supporting ids are those of another corpus, so they are ignored.
    foreign: frozenset[str] = frozenset()


def foreign_sources(questions: Sequence[CorpusQuestion], scan: ScanResult) -> frozenset[str]:
    """Return the sources that name supporting ids, but none that is in the corpus."""
    sources = {question.source for question in questions if question.ids}
    return frozenset(sources - {question.source for question in questions if scan.ids & {*question.ids}})


def judge_questions(questions: Iterable[CorpusQuestion], findings: CorpusFindings) -> list[QuestionVerdict]:
    """Return the verdict on each question, in order."""
    pairs = ((question, signals_of(question, findings)) for question in questions)
    return [QuestionVerdict(question, signals, rule_of(signals)) for question, signals in pairs]


def signals_of(question: CorpusQuestion, findings: CorpusFindings) -> QuestionSignals:
    """Return the signals of one question. Its answer signals are those of its weakest part."""
    parts = [_answer_signals(golds, findings.scan) for _, golds in question.parts]
    order = ("no", "weak", "distinctive")
    weakest = min(parts, key=lambda part: (order.index(part.anywhere), part.passages))
    missing = tuple(name for name in question.ids if name not in findings.scan.ids)
    return QuestionSignals(
        ids_missing=missing if question.ids and question.source not in findings.foreign else None,
        titles={title: findings.titles.level(title) for title in question.titles} or None,
        retriever_rank=_rank(question, findings.retriever),
        bm25_rank=_rank(question, findings.bm25),
        **weakest._asdict(),
    )


def _rank(question: CorpusQuestion, retrieved: RetrievalResults | None) -> int | None:
    """Return the rank of a server's first passage with a gold answer: 0 if there is no such passage, and None
    if the server has no result for the question."""
    result = (retrieved or {}).get(question.key)
    return None if result is None else result.rank or 0


class _AnswerSignals(NamedTuple):
    """The last four signals of QuestionSignals, for the gold answers of one part or for one gold answer."""

    anywhere: Literal["distinctive", "weak", "no"]
    weak: tuple[Weakness, ...]
    passages: int
    passage: str | None


def _answer_signals(golds: Sequence[str], scan: ScanResult) -> _AnswerSignals:
    """Return the signals of the gold answers of one part: those of its most frequent distinctive answer, or
    else of its most frequent weak one."""
    signals = [_gold_signals(gold, scan) for gold in golds]
    in_corpus = [signal for signal in signals if signal.passages]
    if distinctive := [signal for signal in in_corpus if not signal.weak]:
        return max(distinctive, key=lambda signal: signal.passages)
    weak = tuple(sorted({reason for signal in in_corpus or signals for reason in signal.weak}))
    if in_corpus:
        return max(in_corpus, key=lambda signal: signal.passages)._replace(weak=weak)
    return _AnswerSignals("no", weak if all(signal.weak for signal in signals) else (), 0, None)


def _gold_signals(gold: str, scan: ScanResult) -> _AnswerSignals:
    """Return the signals of a single gold answer, with at most one reason why it is weak."""
    tokens = answer_tokens(gold)
    count, first_id = scan.answers.get(" ".join(tokens), (0, None))
    is_common = count > max(MIN_COMMON, COMMON_SHARE * scan.passages)
    reason: Weakness | None = weak_reason(tokens) or ("common" if is_common else None)
    if reason is not None:
        return _AnswerSignals("weak" if count else "no", (reason,), count, first_id)
    return _AnswerSignals("distinctive" if count else "no", (), count, first_id)
