"""A corpus in which questions are written: the demo's world, and a search in it.

Some passages have a sentence that everybody knows; each company has a sign of its own; some passages stand
there a second time under another title (`About ...`), as copies of a page do on the web; and a few are not in
the index of the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from aiohttp import web

from rag_r1.demo.loopback import LoopbackServer
from rag_r1.demo.names import TRADE
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import make_world
from tests.fakes.late_questions import NAMESAKES, late_sentences
from tests.fakes.question_facts import CAPITALS, Facts, fraction
from tests.fakes.retriever import results

COMMON_SHARE, COPIED_SHARE, LOST_SHARE = 0.15, 0.08, 0.015
_SIGNS = [
    f"{colour} {animal}"
    for colour, animal in product(
        "red blue green white black golden silver grey".split(),
        "fox bear swan wolf hare stag crow trout goose lynx heron otter".split(),
    )
]


def make_corpus(seed: int, people: int, places: int, is_late: bool = False) -> list[dict[str, str]]:
    """The passages, `{"id", "contents"}`. `is_late`: with the sentences and the namesakes of which the late
    faults are made."""
    world = make_world(seed, "train", people=people, places=places)
    persons, towns = list(world.facts["birthplace"]), list(world.facts["river"])
    rows, signs = [], iter(_SIGNS)
    for passage in world.passages:
        contents = passage["contents"]
        name = contents.split('"')[1]
        if is_late and name in world.facts["birthplace"] and fraction("namesake", name) < NAMESAKES:
            rows.append({"id": f"{passage['id']}-namesake", "contents": _namesake(name, towns)})
        if is_late:
            kind = next(iter(Facts.of([contents]).kinds.values()))
            contents += late_sentences(name, kind, persons)
        if "The company" in contents and (sign := next(signs, None)):
            contents += f" The sign of {name} is a {sign}."
        if fraction("common", contents) < COMMON_SHARE:
            country = list(CAPITALS)[int(fraction("country", contents) * len(CAPITALS))]
            contents += f" It is taxed in {CAPITALS[country]}, the capital of {country}."
        rows.append({"id": passage["id"], "contents": contents})
        if fraction("copied", contents) < COPIED_SHARE:
            copy = contents.replace(f'"{name}"', f'"About {name}"', 1)
            rows.append({"id": f"{passage['id']}-copy", "contents": copy})
    return rows


def _namesake(name: str, towns: Sequence[str]) -> str:
    """The page of somebody else of this name."""
    trade, town = (pool[int(fraction("namesake's", name) * len(pool))] for pool in (TRADE, towns))
    year = 1931 + int(fraction("younger", name) * 15)
    return f'"{name} (the younger)"\nThe {trade} {name} was born in {town} in {year}.'


def is_lost(contents: str) -> bool:
    """Is a passage not in the index?"""
    return fraction("lost", contents) < LOST_SHARE


@dataclass
class WorldRetriever(LoopbackServer):
    """A retrieval server with BM25 over the passages that are not lost. `requests`: how many it got."""

    passages: Sequence[dict[str, str]]
    requests: int = 0

    def __post_init__(self) -> None:
        self._search = WorldSearch([row for row in self.passages if not is_lost(row["contents"])], 50)

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/retrieve", self._retrieve)

    async def _retrieve(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        self.requests += 1
        found = self._search.results(body["queries"])
        lists = [[(d.id, d.contents) for d in documents[: body["topk"]]] for documents in found]
        return web.json_response(results(lists, score=1.0))
