"""A demo world of long pages that refer to each other, so that a small context needs a memory.

Each person, town and company has a page. Half of these pages end with the fact; the others end with a
reference to another name, whose page has the fact. Each page begins with a list of trades and years that has
nothing to do with the questions:

    "Mara Torval"
    List: pilot in 1907, miner in 1922, ... Mara Torval: see Ilka Ostmer.

    "Ilka Ostmer"
    List: farmer in 1911, doctor in 1925, ... The painter Ilka Ostmer was born in Karlen Ford in 1912.

A page therefore fills most of a small context, a page that is cut at its end has lost the fact, and only
reading a page tells whether it has the fact. A query is a name.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from rag_r1.demo.names import COMPANY, FIRST, LAST, STEM, TOWN, TRADE, YEARS, names
from rag_r1.demo.world import DemoData, World, fresh_world, make_questions, make_world, write_demo
from rag_r1.protocols import Protocol

#: Comparisons are left out, since this policy learns to order two years only in part, with or without a
#: memory.
KINDS = ("one_hop", "bridge", "both")
#: Number of entries in the list at the beginning of a page; an entry has four of the demo policy's tokens.
LIST_ENTRIES = 7
#: Numbers of questions about the train world and the test world, by default.
TRAIN, VAL = 2400, 160


@dataclass(frozen=True)
class PageWorld:
    """A world whose passages are pages."""

    world: World
    #: Entity -> the name to which its page refers, for the pages without the fact.
    references: dict[str, str]
    #: Entity -> the sentence with its fact, as written on the page that has it.
    fact_texts: dict[str, str]

    def fact_page(self, entity: str) -> str:
        """Return the name of the page that has the entity's fact."""
        return self.references.get(entity, entity)


def make_pages(world: World, seed: int | str) -> PageWorld:
    """Turn the world's passages into pages; `seed` draws the lists and the references between pages.

    Raises ValueError if the split has too few names that the world does not use.
    """
    rng = random.Random(f"pages-{seed}-{world.split}")
    texts = {}
    for passage in world.passages:
        title, _, text = passage["contents"].partition("\n")
        texts[title.strip('"')] = (passage["id"], text)
    references = _draw_references(world, list(texts), rng)
    passages, fact_texts = [], {}
    for entity, (id_, text) in texts.items():
        fact_page = references.get(entity, entity)
        fact_texts[entity] = text.replace(entity, fact_page)
        if fact_page != entity:
            text = _page(entity, reference_line(entity, fact_page), rng)
            passages.append({"id": f"{id_}-see", "contents": text})
        passages.append({"id": id_, "contents": _page(fact_page, fact_texts[entity], rng)})
    return PageWorld(replace(world, passages=tuple(passages)), references, fact_texts)


def reference_line(entity: str, fact_page: str) -> str:
    """Return the sentence by which the page of an entity refers to the page that has its fact."""
    return f"{entity}: see {fact_page}."


def pages_data(seed: int, train: int = TRAIN, val: int = VAL, kinds: Sequence[str] = KINDS) -> DemoData:
    """Return the pages of a seed's train and test worlds, and questions about each, like `demo_data`.

    Raises ValueError if a world has too few questions.
    """
    worlds = [
        make_world(seed, split, people=people, places=places)
        for split, people, places in (("train", 1000, 200), ("test", 200, 36))
    ]
    pairs = zip(worlds, (train, val), strict=True)
    questions = [make_questions(world, count, seed, kinds) for world, count in pairs]
    passages = tuple(passage for world in worlds for passage in make_pages(world, seed).world.passages)
    return DemoData(passages, *questions)


def write_pages(out: Path, protocol: Protocol, seed: int, train: int = TRAIN, val: int = VAL) -> DemoData:
    """Write the corpus and the questions of a seed into the folder `out`, like `write_demo`; returns them."""
    return write_demo(out, protocol, seed, train, val, pages_data)


def fresh_pages(rng: random.Random) -> PageWorld:
    """Return a new small world for one batch of supervised training."""
    return make_pages(fresh_world(rng), rng.randrange(1 << 48))


def _draw_references(world: World, entities: Sequence[str], rng: random.Random) -> dict[str, str]:
    """Draw half of the people, towns and companies, and return an unused name for the fact page of each.

    The names consist of words that the world uses, if there are enough such names. Raises ValueError if there
    are too few unused names.
    """
    facts = world.facts
    all_names = chain(facts["birthplace"], facts["river"], facts["river"].values(), facts["founder"])
    words = {word for name in all_names for word in name.split()}
    new_names = {}
    for relation, first, second in (
        ("birthplace", FIRST, LAST),
        ("river", STEM, TOWN),
        ("founder", STEM, COMPANY),
    ):
        candidates = [entity for entity in entities if entity in facts[relation]]
        free = [name for name in names(first, second, world.split) if name not in facts[relation]]
        count = len(candidates) // 2
        if count > len(free):
            raise ValueError(f"split {world.split!r} has {len(free)} free names ({relation}), not {count}")
        familiar = [name for name in free if words.issuperset(name.split())]
        sample = rng.sample(familiar if count <= len(familiar) else free, count)
        new_names |= zip(rng.sample(candidates, count), sample, strict=True)
    return new_names


def _page(title: str, ending: str, rng: random.Random) -> str:
    """Return the text of a page: its title, a random list, and its ending."""
    entries = ", ".join(f"{rng.choice(TRADE)} in {rng.choice(YEARS)}" for _ in range(LIST_ENTRIES))
    return f'"{title}"\nList: {entries}. {ending}'
