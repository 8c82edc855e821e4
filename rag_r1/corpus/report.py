"""Writes the report of a corpus check: the verdicts, summaries, a plot and lists of ids.

    verdicts.jsonl        one line per question: the verdict, the reason, and all signals
    answerable_ids.json   {source: [id, ...]}: the questions for which an evaluation reports a separate EM
    missing.jsonl         ids and titles that the corpus lacks, with the questions that need them
    summary.json, .md     counts and shares by source
    shares.png            a plot of the shares

Titles, ids and answers are treated as hostile data. The JSON files contain them unchanged. Printed text has
no control characters, and the Markdown contains only the names of sources, as code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rag_r1.corpus.arguments import IdsMode
from rag_r1.corpus.questions import CorpusQuestion
from rag_r1.corpus.title_index import STRONG
from rag_r1.corpus.verdict import VERDICTS, CorpusFindings, QuestionVerdict
from rag_r1.io.atomic_files import write_json, write_json_lines, write_text
from rag_r1.io.terminal_text import terminal_text
from rag_r1.runs import pictures
from rag_r1.runs.markdown import Page, integer

#: The file with the ids of the answerable questions.
ANSWERABLE_IDS = "answerable_ids.json"
#: Most questions that missing.jsonl names for each missing id or title.
_MAX_NAMED = 5


def missing_evidence(judged: Iterable[QuestionVerdict]) -> list[dict[str, Any]]:
    """Return the evidence that the corpus lacks as lines of missing.jsonl, the most needed first:
    {"id" or "title": ..., "questions": n, "needed_by": [...]}."""
    needed: dict[tuple[str, str], list[str]] = defaultdict(list)
    for verdict in judged:
        for passage_id in verdict.signals.ids_missing or ():
            needed["id", passage_id].append(verdict.question.id)
        for title, level in (verdict.signals.titles or {}).items():
            if level not in STRONG:
                needed["title", title].append(verdict.question.id)
    rows = [
        {kind: name, "questions": len(ids), "needed_by": ids[:_MAX_NAMED]}
        for (kind, name), ids in needed.items()
    ]
    return sorted(rows, key=lambda row: -row["questions"])


def make_notes(questions: Sequence[CorpusQuestion], findings: CorpusFindings, ids: IdsMode) -> list[str]:
    """Return notes without which the reported shares could be misread. `ids` is the value of --ids."""
    texts = []
    if findings.foreign and ids == "auto":
        texts.append(
            f"The supporting ids of {len(findings.foreign)} source(s) were ignored: none of them is in the "
            "corpus, so they are those of another one. --ids trust counts them as missing."
        )
    for name, results in (("retriever", findings.retriever), ("bm25", findings.bm25)):
        if results is not None and (failed := len(questions) - len(results)):
            texts.append(f"{failed:,} questions got no answer from the {name}. Run again to ask only these.")
    first_hits = findings.scan.probe
    if foreign := len(first_hits - findings.scan.probe_found):
        texts.append(
            f"{foreign:,} of {len(first_hits):,} passages that the servers returned first are not in this "
            "corpus. Do they serve another one?"
        )
    return texts


def summarise(
    judged: Sequence[QuestionVerdict], findings: CorpusFindings, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the content of summary.json: the counts of each source and of all, and the notes."""
    by_source: dict[str, list[QuestionVerdict]] = defaultdict(list)
    for verdict in judged:
        by_source[verdict.question.source].append(verdict)
    return {
        "passages": findings.scan.passages,
        "all": _counts(judged, findings),
        "sources": {source: _counts(verdicts, findings) for source, verdicts in sorted(by_source.items())},
        "notes": list(notes),
    }


def _counts(judged: Sequence[QuestionVerdict], findings: CorpusFindings) -> dict[str, Any]:
    """Return the counts of one source, or of all questions."""
    verdicts = Counter(verdict.rule.verdict for verdict in judged)
    signals = [verdict.signals for verdict in judged]
    titles = [None if s.titles is None else list(s.titles.values()) for s in signals]
    title_levels = Counter(level or "missing" for levels in titles for level in levels or ())
    counts: dict[str, Any] = {
        "questions": len(judged),
        **{name: verdicts[name] for name in VERDICTS},
        "reasons": dict(Counter(verdict.rule.name for verdict in judged).most_common()),
        "signals": {
            "ids": _yes_no_none(None if s.ids_missing is None else not s.ids_missing for s in signals),
            "titles": _yes_no_none(
                None if levels is None else set(levels) <= set(STRONG) for levels in titles
            ),
            "retriever": _yes_no_none(s.retriever_rank for s in signals),
            "bm25": _yes_no_none(s.bm25_rank for s in signals),
            "anywhere": dict(Counter(s.anywhere for s in signals)),
        },
        "title_levels": dict(title_levels.most_common()),
    }
    for name, retrieved in (("retriever", findings.retriever), ("bm25", findings.bm25)):
        shares = [
            retrieved[verdict.question.key].share_of(verdict.question.ids)
            for verdict in judged
            if retrieved and verdict.question.key in retrieved and verdict.signals.ids_missing is not None
        ]
        if shares:
            counts[f"{name}_recall"] = sum(shares) / len(shares)
    return counts


def _yes_no_none(values: Iterable[Any]) -> dict[str, int]:
    """Count the values that are true ("yes"), false ("no") and None ("none")."""
    counts = Counter(None if value is None else bool(value) for value in values)
    return {"yes": counts[True], "no": counts[False], "none": counts[None]}


def write_report(out: Path, judged: Sequence[QuestionVerdict], summary: dict[str, Any]) -> None:
    """Write all files of the report, each of which appears under its name only when it is complete."""
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
    """Return the shares by source, the counts by reason, the recall and the notes as Markdown."""
    sources = [(f"`{_markdown_safe(source)}`", counts) for source, counts in summary["sources"].items()]
    if len(sources) > 1:
        sources.append(("all", summary["all"]))
    page = Page().text(
        f"{integer(summary['all']['questions'])} questions, {integer(summary['passages'])} passages"
    )
    page.table(
        ["source", "questions", *VERDICTS],
        [[name, integer(counts["questions"]), *_shares(counts)] for name, counts in sources],
    )
    reasons = summary["all"]["reasons"].items()
    page.table(["reason", "questions"], [[f"`{reason}`", integer(count)] for reason, count in reasons])
    for name in ("retriever", "bm25"):
        if (recall := summary["all"].get(f"{name}_recall")) is not None:
            page.text(f"Recall of the supporting passages, {name}: {recall:.1%}")
    return str(page.text(*summary.get("notes", ())))


def _shares(counts: dict[str, Any]) -> list[str]:
    """Return the share of each verdict, as a percentage."""
    return [f"{counts[verdict] / max(counts['questions'], 1):.1%}" for verdict in VERDICTS]


def _markdown_safe(text: str) -> str:
    """Return the text without control characters, and without those that end code or a cell in Markdown."""
    return "".join("_" if character in "`|<>&" else character for character in terminal_text(text, 60))


def draw(summary: dict[str, Any], path: Path) -> list[Path]:
    """Draw a bar for each source, divided into the three verdicts. Returns the files that were written, which
    are none if matplotlib is not installed."""
    sources = dict(reversed(summary["sources"].items()))

    def paint(axes: pictures.Axes) -> None:
        starts = [0.0] * len(sources)
        colors = (pictures.BLUE, pictures.ORANGE, pictures.GREY)
        for verdict, color in zip(VERDICTS, colors, strict=True):
            widths = [counts[verdict] / counts["questions"] for counts in sources.values()]
            bars = axes.barh(range(len(sources)), widths, left=starts, height=0.6, color=color, label=verdict)
            # A narrower part has no room for its label.
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

    return pictures.draw(path, paint, size=(7, 1.4 + 0.4 * len(sources)))
