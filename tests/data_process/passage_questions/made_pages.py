"""A small invented encyclopedia, and its questions."""

from __future__ import annotations

from typing import Any

from data_process.passage_questions.command import make_rows
from rag_r1.corpus.reader import Passage

PAGES = {
    "Anna Rado": "Anna Maria Rado (born 3 May 1950) is a Hungarian film director.",
    "Tom Hale": "Tom Hale (2 June 1921 – 9 July 1999) was an American film director and producer.",
    "Silver Gate (film)": "Silver Gate is a 1980 Hungarian drama film directed by Anna Rado and starring "
    "Eva Lund.",
    "The Long Ferry": "The Long Ferry is a 1962 American film directed by Tom Hale.",
    "Green Hours": "Green Hours is a 1971 American film directed by Tom Hale.",
    "Low Tide": '"Low Tide" is an album by the American rock band Harbour Lights, released in 1994.',
    "Harbour Lights": "Harbour Lights are an American rock band formed in 1990 in Boston.",
}
FILM = "{} is a {} American film directed by {}."


def passages(pages: dict[str, str]) -> list[Passage]:
    return [Passage(f"p{number}", f'"{title}"\n{text}') for number, (title, text) in enumerate(pages.items())]


def rows_of(pages: dict[str, str], **how: Any) -> list[dict[str, Any]]:
    return make_rows(passages(pages), **{"seed": 0, "per_kind": 1000, "test_share": 0.01} | how)[0]


def asked(rows: list[dict[str, Any]], kind: str, relation: str | None = None) -> dict[str, list[str]]:
    """The gold answers of each question of a kind."""
    return {
        row["question"]: row["golden_answers"]
        for row in rows
        if row["kind"] == kind and relation in (None, row["relation"])
    }
