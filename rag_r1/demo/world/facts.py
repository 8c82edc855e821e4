"""Draws the facts of an invented world at random, and writes the passages that state them.

Every person was born in a town in some year, every town lies on a river, and every company was founded by a
person. Each person, town and company has a passage that states its facts. All names of a world belong to the
same split (names.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_r1.demo.names import COMPANY, FIRST, LAST, RIVER, STEM, TOWN, TRADE, YEARS, names


@dataclass(frozen=True)
class Lookup:
    """A fact that can be looked up: a search for `entity` finds a passage that states `value`."""

    #: Name of a person, a town or a company.
    entity: str
    #: `birthplace`, `year`, `river` or `founder`.
    relation: str
    value: str


@dataclass(frozen=True)
class World:
    """The facts of a world, and the passages that state them."""

    #: Split of the names, `train` or `test`.
    split: str
    #: relation -> entity -> value.
    facts: dict[str, dict[str, str]]
    #: Passages as `{"id", "contents"}`.
    passages: tuple[dict[str, str], ...]

    def lookup(self, relation: str, entity: str) -> Lookup:
        """Return the fact about an entity in a relation."""
        return Lookup(entity, relation, self.facts[relation][entity])

    def draw_lookups(self, relation: str, count: int, rng: random.Random) -> tuple[Lookup, ...]:
        """Draw the facts about `count` different entities. Raises ValueError if there are fewer."""
        return tuple(self.lookup(relation, name) for name in rng.sample(list(self.facts[relation]), count))


def make_world(seed: int, split: str, people: int, places: int, words: int = 48) -> World:
    """Draw a world with `people` persons, and with `places` towns, rivers and companies each.

    `words` is the number of first names, of last names and of stems from which the names are made. With few
    words, the passages of a small world are as easy to confuse as those of a large one. Raises ValueError if
    the split does not have enough names, or a pool not enough words.
    """
    rng = random.Random(f"world-{seed}-{split}")
    vocabulary = {*TOWN, *RIVER, *COMPANY}
    vocabulary.update(word for pool in (FIRST, LAST, STEM) for word in rng.sample(pool, words))

    def draw(first: Sequence[str], second: Sequence[str], count: int) -> list[str]:
        """Draw names of the split from the vocabulary."""
        pool = [name for name in names(first, second, split) if vocabulary.issuperset(name.split())]
        if count > len(pool):
            raise ValueError(f"split {split!r} has {len(pool)} such names, not {count}: ask for fewer")
        return rng.sample(pool, count)

    persons = draw(FIRST, LAST, people)
    towns, rivers, companies = (draw(STEM, second, places) for second in (TOWN, RIVER, COMPANY))
    facts = {
        "birthplace": {person: rng.choice(towns) for person in persons},
        "year": {person: rng.choice(YEARS) for person in persons},
        "river": {town: rng.choice(rivers) for town in towns},
        "founder": {company: rng.choice(persons) for company in companies},
    }
    passages = tuple(
        {"id": f"{split}-{i}", "contents": f'"{title}"\n{text}'}
        for i, (title, text) in enumerate(_statements(facts, rng))
    )
    return World(split, facts, passages)


def _statements(facts: dict[str, dict[str, str]], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield (title, text) of each passage; `rng` draws the trades."""
    for person, town in facts["birthplace"].items():
        yield person, f"The {rng.choice(TRADE)} {person} was born in {town} in {facts['year'][person]}."
    for town, river in facts["river"].items():
        yield town, f"The town {town} lies on the river {river}."
    for company, person in facts["founder"].items():
        yield company, f"The company {company} was founded by {person}."


def fresh_world(rng: random.Random) -> World:
    """Draw a new small world, for a batch of supervised training."""
    return make_world(rng.randrange(1 << 48), "train", people=20, places=10, words=12)
