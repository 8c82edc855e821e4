"""The demo's world in long pages from two sources, for which a small context needs a memory.

Of every person, town and company there is a page in the archive and a page in the gazette. One of the two,
drawn at random, ends with the fact; the other ends with the words that it lacks the name. Both begin with a
list of trades and years about nobody in the world:

    "Mara Torval"
    The gazette: pilot in 1907, miner in 1922, ... The painter Mara Torval was born in Karlen Ford in 1912.

    "Mara Torval"
    The archive: farmer in 1911, doctor in 1925, ... The archive lacks Mara Torval.

So a page fills most of a small context, a page that is cut at its end has lost the fact, and which source to
ask can only be found out by asking. A query names the source and the entity: `gazette Mara Torval`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rag_r1.demo.world import TRADE, YEARS, DemoData, World, make_questions, make_world, write_demo
from rag_r1.protocols import Protocol

SOURCES = ("archive", "gazette")
#: Comparisons are left out: this policy learns to order two years only in part, whatever its memory.
KINDS = ("one_hop", "bridge", "both")
#: Entries of the list at the beginning of a page; each is four of the demo policy's tokens.
LISTED = 6


@dataclass(frozen=True)
class Pages:
    """A world whose passages are pages, the source that has each entity's fact, and the fact as it stands
    there."""

    world: World
    holder: dict[str, str]
    fact: dict[str, str]


def pages_of(world: World, seed: int | str) -> Pages:
    """The world's passages as pages; `seed` draws the lists and which source has what."""
    rng = random.Random(f"pages-{seed}-{world.split}")
    holder: dict[str, str] = {}
    fact: dict[str, str] = {}
    passages = []
    for passage in world.passages:
        title, _, text = passage["contents"].partition("\n")
        entity = title.strip('"')
        holder[entity], fact[entity] = rng.choice(SOURCES), text
        for source in SOURCES:
            ending = text if source == holder[entity] else lacking(source, entity)
            contents = f"{title}\nThe {source}: {_list(rng)} {ending}"
            passages.append({"id": f"{passage['id']}-{source}", "contents": contents})
    return Pages(replace(world, passages=tuple(passages)), holder, fact)


def lacking(source: str, entity: str) -> str:
    """How a source says that it lacks a fact."""
    return f"The {source} lacks {entity}."


def other(source: str) -> str:
    """The other source."""
    return SOURCES[1 - SOURCES.index(source)]


def pages_data(seed: int, train: int = 2400, val: int = 160, kinds: Sequence[str] = KINDS) -> DemoData:
    """As `world.demo_data`, in pages and without comparisons. Raises ValueError for more questions than the
    world has."""
    worlds = [
        make_world(seed, split, people=people, places=places)
        for split, people, places in (("train", 1000, 200), ("test", 200, 45))
    ]
    questions = [make_questions(world, n, seed, kinds) for world, n in zip(worlds, (train, val), strict=True)]
    passages = tuple(passage for world in worlds for passage in pages_of(world, seed).world.passages)
    return DemoData(passages, *questions)


def write_pages(out: Path, protocol: Protocol, seed: int, train: int = 2400, val: int = 160) -> DemoData:
    """As `world.write_demo`, of this world."""
    return write_demo(out, protocol, seed, train, val, pages_data)


def fresh_pages(rng: random.Random) -> Pages:
    """A new small world for one batch of supervised training."""
    world = make_world(rng.randrange(1 << 48), "train", people=20, places=10, words=12)
    return pages_of(world, rng.randrange(1 << 48))


def _list(rng: random.Random) -> str:
    entries = (f"{rng.choice(TRADE)} in {rng.choice(YEARS)}" for _ in range(LISTED))
    return ", ".join(entries) + "."
