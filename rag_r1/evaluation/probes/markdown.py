"""Renders the content of search_card.json as the page search_card.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.evaluation.probes.verdict import CONDITION_NAMES
from rag_r1.runs.markdown import Page, cell, integer, number, table, with_interval

#: The content of search_card.json.
Card = Mapping[str, Any]

#: How each condition differs from the real run, as the page says it.
_DESCRIPTIONS = {
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
    """Return the page, with links to the pictures."""
    first, verdict, *remarks = card["sentences"]
    page = Page("Does it search, or does it already know?")
    page.text(f"**{verdict}** {' '.join([first, *remarks])}").pictures(pictures).table(_HEAD, _rows(card))
    if groups := list(card["conditions"]["real"]["groups"]):
        rows = [
            [CONDITION_NAMES[name], *(with_interval(condition["groups"][group], 2) for group in groups)]
            for name, condition in card["conditions"].items()
        ]
        page.heading("EM by data source and kind of question").table(["", *map(cell, groups)], rows)
    page.heading("What differs from the real run")
    page.bullets(f"{CONDITION_NAMES[name]}: {text}" for name, text in _DESCRIPTIONS.items())
    return str(page.text(*_excluded_lines(card), *_foot(card)))


def table_lines(card: Card) -> list[str]:
    """Return the lines of the table of conditions, over all questions."""
    return table(_HEAD, _rows(card))


def _rows(card: Card) -> list[list[str]]:
    """Return the cells of the table: a row for each condition."""
    return [
        [
            CONDITION_NAMES[name],
            integer(condition["questions"]),
            with_interval(condition["em"], 2),
            with_interval(condition.get("difference"), 2, signed=True),
            number(condition["answered"]["value"], 2),
            number(condition["queries"]["value"], 2),
            integer(condition["failed"]),
        ]
        for name, condition in card["conditions"].items()
    ]


def _excluded_lines(card: Card) -> Iterator[str]:
    """Yield sentences about conditions that were not played, and questions that were left out of others."""
    for name, reasons in card["left_out"].items():
        for reason, count in reasons.items():
            if count is None:
                yield f"Not played: {CONDITION_NAMES[name]}: {reason}."
            else:
                yield f"Left out of {CONDITION_NAMES[name]}: {integer(count)} {reason}."


def _foot(card: Card) -> list[str]:
    """Return the paragraphs about the intervals, the model and the corpus."""
    interval, model = card["interval"], card["model"] or {}
    facts = {
        "model": model.get("name"),
        "protocol": card["protocol"],
        "corpus": (card["corpus_sha256"] or "")[:12],
    }
    line = ", ".join(f"{name} {cell(value)}" for name, value in facts.items() if value)
    return [
        f"In brackets: {interval['level']:.0%} bootstrap intervals ({integer(interval['resamples'])} "
        "replicates, questions drawn within their data sources). A condition is compared with the real run "
        "on the questions that both have. Failed episodes have no score.",
        *([f"{line[0].upper()}{line[1:]}."] if line else []),
    ]
