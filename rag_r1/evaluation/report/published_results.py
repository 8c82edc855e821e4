"""The papers' data sets: their order, their labels and their published results.

The columns of RAG-R1's tables are NQ, TriviaQA, PopQA | HotpotQA, 2Wiki, MuSiQue, Bamboogle | Avg.: three
data sets of single-hop questions, four of multi-hop questions, and the mean in which each set counts once.
Agentic RAG-R1's MedQA comes after them. A data source is recognised by the last part of its name (`hotpotqa`,
`rag_r1/hotpotqa`, `searchR1_nq`). Unknown sources follow in alphabetical order.

Published figures are printed for orientation only. They were measured on other corpora, with other
retrievers, prompts and budgets, and some of them on samples of the questions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

#: The labels in tables, in the order of the papers, each with the names that data sources may have.
LAYOUT: dict[str, tuple[str, ...]] = {
    "NQ": ("nq", "nqopen", "naturalquestions"),
    "TriviaQA": ("triviaqa", "trivia", "tqa"),
    "PopQA": ("popqa",),
    "HotpotQA": ("hotpotqa", "hotpot"),
    "2Wiki": ("2wikimultihopqa", "2wikimqa", "2wiki"),
    "MuSiQue": ("musique", "musiqueans"),
    "Bamboogle": ("bamboogle",),
    "MedQA (zh)": ("medqazh",),
}
_LABELS = {name: label for label, names in LAYOUT.items() for name in names}


def label_of(source: str) -> str | None:
    """Return the papers' label of a data source; None for an unknown source."""
    name = re.sub(r"[^a-z0-9]", "", source.rpartition("/")[2].lower())
    return _LABELS.get(name.removeprefix("searchr1"))


def in_paper_order(sources: Iterable[str]) -> list[str]:
    """Return the distinct data sources in the papers' order, followed by unknown ones in alphabetical
    order."""
    order = [*LAYOUT, None]
    return sorted(set(sources), key=lambda source: (order.index(label_of(source)), source))


def labels(sources: Iterable[str]) -> dict[str, str]:
    """Return the name of each source in tables: its label, or the source's own name if it has no label or
    shares the label with another source."""
    paper_labels = {source: label_of(source) for source in sources}
    all_labels = list(paper_labels.values())
    return {
        source: label if label and all_labels.count(label) == 1 else source or "(no data source)"
        for source, label in paper_labels.items()
    }


#: What a published figure measures. `formatted` is the share of answers in the required format.
PublishedMeasure = Literal["em", "cover_em", "judge", "formatted"]


@dataclass(frozen=True)
class PublishedResult:
    """A row of a paper's table."""

    #: The system or mode that was evaluated.
    system: str
    measure: PublishedMeasure
    #: Shares from 0 to 1 by the label of the data set.
    values: Mapping[str, float]
    #: The paper or repository.
    source: str


def _row(system: str, measure: PublishedMeasure, source: str, names: str, *values: float) -> PublishedResult:
    """Return a row with one value per label. `names` are the labels, separated by spaces."""
    return PublishedResult(system, measure, dict(zip(names.split(), values, strict=True)), source)


_RAG_R1 = "arXiv 2507.02962 (Qwen2.5-7B-Instruct)"
_R1_SEARCHER = "arXiv 2503.05592"
_AGENTIC_RAG = "jiangxinke/Agentic-RAG-R1, README (judge: of the answers that could be extracted only)"
#: Labels of data sets, in the order of the values below.
_SEVEN = "NQ PopQA TriviaQA HotpotQA 2Wiki MuSiQue Bamboogle"
_FOUR = "HotpotQA 2Wiki Bamboogle MuSiQue"

PUBLISHED: tuple[PublishedResult, ...] = (
    _row("RAG", "em", _RAG_R1, _SEVEN, 0.328, 0.353, 0.476, 0.284, 0.253, 0.048, 0.152),
    _row("Search-R1", "em", _RAG_R1, _SEVEN, 0.387, 0.422, 0.531, 0.377, 0.351, 0.135, 0.376),
    _row("R1-Searcher", "em", _RAG_R1, _SEVEN, 0.404, 0.410, 0.522, 0.442, 0.513, 0.158, 0.368),
    _row("RAG-R1-sq", "em", _RAG_R1, _SEVEN, 0.429, 0.477, 0.599, 0.474, 0.481, 0.181, 0.432),
    _row("RAG-R1-mq", "em", _RAG_R1, _SEVEN, 0.423, 0.479, 0.608, 0.495, 0.556, 0.192, 0.432),
    _row("ReARTeR (GPT-4o-mini)", "cover_em", _R1_SEARCHER, _FOUR, 0.468, 0.554, 0.496, 0.296),
    _row("R1-Searcher (Llama-3.1-8B)", "cover_em", _R1_SEARCHER, _FOUR, 0.648, 0.594, 0.504, 0.254),
    _row("R1-Searcher (Qwen2.5-7B)", "cover_em", _R1_SEARCHER, _FOUR, 0.654, 0.636, 0.528, 0.282),
    _row("ReARTeR (GPT-4o-mini)", "judge", _R1_SEARCHER, _FOUR, 0.506, 0.534, 0.544, 0.302),
    _row("R1-Searcher (Llama-3.1-8B)", "judge", _R1_SEARCHER, _FOUR, 0.746, 0.628, 0.544, 0.282),
    _row("R1-Searcher (Qwen2.5-7B)", "judge", _R1_SEARCHER, _FOUR, 0.750, 0.650, 0.544, 0.314),
    *(
        PublishedResult(f"Agentic RAG-R1, {mode}", measure, {"MedQA (zh)": value}, _AGENTIC_RAG)
        for mode, formatted, right in (
            ("before training, without search", 0.39, 0.84),
            ("before training, with search", 0.56, 0.79),
            ("after 200 steps, with search", 0.92, 0.87),
        )
        for measure, value in (("formatted", formatted), ("judge", right))
    ),
)
