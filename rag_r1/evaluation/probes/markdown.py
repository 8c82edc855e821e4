"""Renders search_card.json as search_card.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.evaluation.probes.metrics import CONDITION_NAMES
from rag_r1.runs.markdown import Page, cell, integer, number, one_line_text, table, with_interval

Card = Mapping[str, Any]

_WHAT = {
    "closed_book": "no turn in which it may search: it has to answer at once",
    "empty": "every search finds nothing",
    "random": "every search finds passages of the corpus drawn at random, none of the question's gold ones",
    "gold": "the real search, with the question's gold passages that it misses put first",
    "withheld": "the real search without the gold passages; what it ranks next takes their place",
}
_HEAD = (
    "condition",
    "questions",
    "EM",
    "difference from the real run",
    "has an answer",
    "queries a question",
    "failed",
)


def markdown(card: Card, pictures: Sequence[Path] = ()) -> str:
    """The whole page."""
    first, said, *more = card["sentences"]
    page = Page("Does it search, or does it already know?").text(f"**{said}** {' '.join([first, *more])}")
    page.pictures(pictures).table(_HEAD, _rows(card))
    groups = list(card["conditions"]["real"]["groups"])
    if groups:
        rows = [
            [CONDITION_NAMES[name], *(with_interval(one["groups"][group], 2) for group in groups)]
            for name, one in card["conditions"].items()
        ]
        page.heading("EM by data source and kind of question").table(["", *map(cell, groups)], rows)
    page.heading("What differs from the real run")
    page.bullets(f"{CONDITION_NAMES[name]}: {text}" for name, text in _WHAT.items())
    return str(page.text(*_left_out(card), *_foot(card)))


def table_lines(card: Card) -> list[str]:
    """The table of the conditions, over all questions."""
    return table(_HEAD, _rows(card))


def _rows(card: Card) -> list[list[str]]:
    rows = []
    for name, one in card["conditions"].items():
        shown = [
            integer(one["questions"]),
            with_interval(one["em"], 2),
            with_interval(one.get("difference"), 2, signed=True),
            number(one["answered"]["value"], 2),
            number(one["queries"]["value"], 2),
            integer(one["failed"]),
        ]
        rows.append([CONDITION_NAMES[name], *shown])
    return rows


def _left_out(card: Card) -> Iterator[str]:
    for name, reasons in card["left_out"].items():
        for reason, count in reasons.items():
            if count is None:
                yield f"Not played: {CONDITION_NAMES[name]}: {reason}."
            else:
                yield f"Left out of {CONDITION_NAMES[name]}: {integer(count)} {reason}."


def _foot(card: Card) -> list[str]:
    interval, model = card["interval"], card["model"] or {}
    made = ", ".join(
        f"{label} {cell(one_line_text(value))}"
        for label, value in (
            ("model", model.get("name")),
            ("protocol", card["protocol"]),
            ("corpus", (card["corpus_sha256"] or "")[:12] or None),
        )
        if value
    )
    return [
        f"In brackets: {interval['level']:.0%} bootstrap intervals ({integer(interval['resamples'])} "
        "replicates, questions drawn within their data sources). A condition is compared with the real run "
        "on the questions that both have. Failed episodes have no score.",
        *([made[0].upper() + made[1:] + "."] if made else []),
    ]
