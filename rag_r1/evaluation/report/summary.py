"""Makes the lines that `rag-r1 eval` prints at its end: the main figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rag_r1.evaluation.report.episode_metrics import TERM_PREFIX
from rag_r1.evaluation.report.published_results import labels
from rag_r1.runs.markdown import one_line_text, with_interval

#: The width of the column of labels, in characters.
_LABEL_WIDTH = 32
#: The figures that are printed, if they have a value.
_SHOWN = ("em", "cover_em", "f1", "em_answerable", "formatted", "retrievals", "seconds", "recall")


def headline(report: Mapping[str, Any], condition: str) -> Iterator[str]:
    """Yield lines with the main figures over all questions, and with the EM of each data source."""
    totals = report["counts"]["all"]
    counts = f"{totals['questions']:,} questions, {totals['episodes']:,} episodes"
    yield f"condition {one_line_text(condition)}: {counts}"
    figures = report["figures"]
    for name in (*_SHOWN, *(name for name in figures if name.startswith(TERM_PREFIX))):
        figure = figures[name]
        if figure["all"]["value"] is not None:
            yield f"  {figure['label']:{_LABEL_WIDTH}}{with_interval(figure['all'], figure['decimals'])}"
    sources = figures["em"]["sources"]
    if len(sources) > 1:
        for name, figure in zip(labels(sources).values(), sources.values(), strict=True):
            yield f"  {'EM, ' + one_line_text(name):{_LABEL_WIDTH}}{with_interval(figure)}"
        yield f"  {'EM, mean of the sources':{_LABEL_WIDTH}}{with_interval(figures['em']['mean'])}"
    if figures["answerable"]["all"]["value"] is None:
        yield (
            "which questions the corpus can answer is not known: --answerable FILE of `rag-r1 corpus check` "
            "adds the figures of these"
        )
