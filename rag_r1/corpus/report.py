"""Writes the report of a corpus check: verdicts.jsonl, summaries, a plot and lists of ids.

    verdicts.jsonl        a line a question: verdict, reason, every signal
    answerable_ids.json   {source: [id, ...]}: an evaluation reports EM over all and over these questions
    missing.jsonl         what is not in the corpus: ids and titles, with the questions that need them
    summary.json, .md     counts and shares by source; shares.png shows them

Titles, ids and answers are hostile data. They are in the JSON files as they are; what is printed has no
control characters, and the Markdown holds none of them but the names of sources, as code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_r1.corpus.questions import CorpusQuestion
from rag_r1.corpus.title_index import STRONG
from rag_r1.corpus.verdict import VERDICTS, CorpusFindings, QuestionSignals, VerdictRule, rule_of, signals_of
from rag_r1.io.atomic_files import write_json, write_json_lines, write_text
from rag_r1.io.terminal_text import terminal_text
from rag_r1.runs import pictures
from rag_r1.runs.markdown import Page, integer

ANSWERABLE_IDS = "answerable_ids.json"
#: Questions that need a missing passage and are named in missing.jsonl.
_NAMED = 5


@dataclass(frozen=True)
class QuestionVerdict:
    """A question with its signals and the rule that decided."""

    question: CorpusQuestion
    signals: QuestionSignals
    rule: VerdictRule

    def row(self) -> dict[str, Any]:
        """A line of verdicts.jsonl."""
        source, question_id = self.question.key
        facts = {"source": source, "id": question_id, "verdict": self.rule.verdict, "reason": self.rule.name}
        texts, golds = zip(*self.question.parts, strict=True)
        if len(texts) > 1:
            parts = {"parts": texts, "part_answers": golds}
        else:
            parts = {"question": texts[0], "golden_answers": golds[0]}
        return {**facts, **parts, "signals": asdict(self.signals)}


def judge_questions(questions: Iterable[CorpusQuestion], evidence: CorpusFindings) -> list[QuestionVerdict]:
    """The verdicts of all questions, in order."""
    pairs = ((question, signals_of(question, evidence)) for question in questions)
    return [QuestionVerdict(question, signals, rule_of(signals)) for question, signals in pairs]


def missing_evidence(judged: Iterable[QuestionVerdict]) -> list[dict[str, Any]]:
    """What is not in the corpus, most needed first: {"id" or "title", "questions": n, "needed_by": [...]}."""
    needed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for verdict in judged:
        for passage_id in verdict.signals.ids_missing or ():
            needed["id", passage_id].append(verdict.question.id)
        for title, level in (verdict.signals.titles or {}).items():
            if level not in STRONG:
                needed["title", title].append(verdict.question.id)
    rows = [
        {kind: name, "questions": len(ids), "needed_by": ids[:_NAMED]} for (kind, name), ids in needed.items()
    ]
    return sorted(rows, key=lambda row: -row["questions"])


def summarise(verdicts: Sequence[QuestionVerdict], evidence: CorpusFindings) -> dict[str, Any]:
    """Counts by source and over all; shares follow from them."""
    by_source: dict[str, list[QuestionVerdict]] = defaultdict(list)
    for verdict in verdicts:
        by_source[verdict.question.source].append(verdict)
    return {
        "passages": evidence.scan.passages,
        "all": _counts(verdicts, evidence),
        "sources": {source: _counts(verdicts, evidence) for source, verdicts in sorted(by_source.items())},
    }


def _counts(judged: Sequence[QuestionVerdict], evidence: CorpusFindings) -> dict[str, Any]:
    verdicts = Counter(verdict.rule.verdict for verdict in judged)
    signals = [verdict.signals for verdict in judged]
    titles = [None if s.titles is None else list(s.titles.values()) for s in signals]
    levels = Counter(level or "missing" for row in titles for level in row or ())
    counts: dict[str, Any] = {
        "questions": len(judged),
        **{name: verdicts[name] for name in VERDICTS},
        "reasons": dict(Counter(verdict.rule.name for verdict in judged).most_common()),
        "signals": {
            "ids": _three(None if s.ids_missing is None else not s.ids_missing for s in signals),
            "titles": _three(None if row is None else set(row) <= set(STRONG) for row in titles),
            "retriever": _three(s.retriever_rank for s in signals),
            "bm25": _three(s.bm25_rank for s in signals),
            "anywhere": dict(Counter(s.anywhere for s in signals)),
        },
        "title_levels": dict(levels.most_common()),
    }
    for name, retrieved in (("retriever", evidence.retriever), ("bm25", evidence.bm25)):
        shares = [
            retrieved[verdict.question.key].share_of(verdict.question.ids)
            for verdict in judged
            if retrieved and verdict.question.key in retrieved and verdict.signals.ids_missing is not None
        ]
        if shares:
            counts[f"{name}_recall"] = sum(shares) / len(shares)
    return counts


def _three(values: Iterable[Any]) -> dict[str, int]:
    """How often a signal says yes and no, and how often there is none."""
    counts = Counter("none" if value is None else "yes" if value else "no" for value in values)
    return {name: counts[name] for name in ("yes", "no", "none")}


def write_report(out: Path, judged: Sequence[QuestionVerdict], summary: dict[str, Any]) -> None:
    """All files of the report; each appears under its name when it is whole."""
    out.mkdir(parents=True, exist_ok=True)
    write_json_lines(out / "verdicts.jsonl", (verdict.row() for verdict in judged), durable=True)
    write_json_lines(out / "missing.jsonl", missing_evidence(judged), durable=True)
    ids: dict[str, list[str]] = defaultdict(list)
    for verdict in judged:
        if verdict.rule.verdict == "answerable":
            ids[verdict.question.source].append(verdict.question.id)
    write_json_lines(out / ANSWERABLE_IDS, [ids], durable=True)
    write_json(out / "summary.json", summary, ensure_ascii=False, durable=True)
    write_text(out / "summary.md", markdown(summary) + "\n", durable=True)
    draw(summary, out / "shares.png")


def markdown(summary: dict[str, Any]) -> str:
    """The shares by source, and what decided, as Markdown."""
    sources = {f"`{_plain(source)}`": counts for source, counts in summary["sources"].items()}
    if len(sources) > 1:
        sources["all"] = summary["all"]
    page = Page().text(
        f"{integer(summary['all']['questions'])} questions, {integer(summary['passages'])} passages"
    )
    page.table(
        ["source", "questions", *VERDICTS],
        [[name, integer(counts["questions"]), *_shares(counts)] for name, counts in sources.items()],
    )
    reasons = summary["all"]["reasons"].items()
    page.table(["reason", "questions"], [[f"`{reason}`", integer(count)] for reason, count in reasons])
    for name in ("retriever", "bm25"):
        if (recall := summary["all"].get(f"{name}_recall")) is not None:
            page.text(f"Recall of the supporting passages, {name}: {recall:.1%}")
    return str(page.text(*summary.get("notes", ())))


def _shares(counts: dict[str, Any]) -> list[str]:
    return [f"{counts[verdict] / max(counts['questions'], 1):.1%}" for verdict in VERDICTS]


def _plain(text: str) -> str:
    """For a table and code of Markdown."""
    return "".join("_" if character in "`|<>&" else character for character in terminal_text(text, 60))


def draw(summary: dict[str, Any], path: Path) -> list[Path]:
    """The picture, where matplotlib is installed: a bar a source, divided into the three verdicts."""
    sources = dict(reversed(summary["sources"].items()))

    def shares(axes: Any) -> None:
        starts = [0.0] * len(sources)
        colors = (pictures.BLUE, pictures.ORANGE, pictures.GREY)
        for verdict, color in zip(VERDICTS, colors, strict=True):
            widths = [counts[verdict] / counts["questions"] for counts in sources.values()]
            bars = axes.barh(range(len(sources)), widths, left=starts, height=0.6, color=color, label=verdict)
            labels = [f"{width:.0%}" if width >= 0.05 else "" for width in widths]
            axes.bar_label(bars, labels, label_type="center", color="white", fontsize=8)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        names = [
            f"{terminal_text(source, 40)} ({counts['questions']:,})" for source, counts in sources.items()
        ]
        axes.set_yticks(range(len(sources)), names, parse_math=False)
        axes.set(xlim=(0, 1), xticks=[0, 0.25, 0.5, 0.75, 1])
        axes.set_title("Can the questions be answered from this corpus?", loc="left")
        axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.12))

    return pictures.draw(path, shares, size=(7, 1.4 + 0.4 * len(sources)))
