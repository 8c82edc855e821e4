"""Writes questions about the entities of a corpus.

A question asks for one fact, for a fact of a linked page (a bridge), for the entity that has two facts, or
compares two entities of one kind. The wordings come from `templates.py`. A hash of the seed and the titles
decides which wording is used and which entities are paired, so that the same corpus gives the same questions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from data_process.passage_questions.ambiguity import Mentions
from data_process.passage_questions.entities import Entity, Links
from data_process.passage_questions.facts import LIFE
from data_process.passage_questions.splits import hash_words, split_of
from data_process.passage_questions.templates import (
    BRIDGES,
    DESCRIPTIONS,
    ONE_HOP,
    ORDERS,
    SAME_VALUE,
    TWO_FACTS,
)
from data_process.passage_questions.vocabulary import NAME, are_related
from rag_r1.data.answer_forms import nationality_forms

KINDS = ("one_hop", "bridge", "two_facts", "comparison", "yes_no")


@dataclass(frozen=True)
class MadeQuestion:
    """A question with its gold answers and its evidence."""

    #: One of KINDS.
    kind: str
    #: The relation, or the path of relations, that the question asks for.
    relation: str
    question: str
    golds: tuple[str, ...]
    #: The entities of the question, whose pages are its evidence.
    entities: tuple[Entity, ...]
    #: For `two_facts`: the values that no other passage may name together. If one of the two facts is a date,
    #: it is the only one, because a date in two passages is reason enough to drop the question.
    distinctive_values: tuple[str, ...] = ()


class QuestionWriter:
    """Writes the questions about the entities of one corpus."""

    def __init__(self, entities: Sequence[Entity], links: Links, seed: int, test_share: float) -> None:
        """`links` are those between the entities; `test_share` is the share of entities that are in test."""
        self.entities, self.links, self.seed = entities, links, seed
        self._splits = {entity.id: split_of(links.root(entity), seed, test_share) for entity in entities}

    def questions(self) -> Iterator[MadeQuestion]:
        """Yield all questions of all kinds."""
        for entity in self.entities:
            yield from self.one_hop(entity)
            yield from self.bridge(entity)
            yield from self.two_facts(entity)
        yield from self.comparisons()
        yield from self.same_values()
        yield from self.nationalities()

    def split(self, question: MadeQuestion) -> str | None:
        """Return the split of a question's entities, or None if they are in both splits."""
        splits = {self._splits[entity.id] for entity in question.entities}
        return splits.pop() if len(splits) == 1 else None

    def one_hop(self, entity: Entity) -> Iterator[MadeQuestion]:
        """Yield a question for each fact of an entity."""
        for relation, wordings in ONE_HOP.get(entity.kind, {}).items():
            if entity.value(relation):
                text = self._draw(wordings, entity.title, relation).format(name=entity.name)
                yield MadeQuestion("one_hop", relation, text, entity.forms(relation), (entity,))

    def bridge(self, entity: Entity) -> Iterator[MadeQuestion]:
        """Yield questions for the facts of each entity to which a fact of this one links."""
        for relation, wordings in DESCRIPTIONS.get(entity.kind, {}).items():
            if (target := self.links.follow(entity, relation)) is None:
                continue
            description = self._draw(wordings, entity.title, relation).format(name=entity.name)
            for fact, questions in BRIDGES[target.kind].items():
                if target.value(fact):
                    text = self._draw(questions, entity.title, fact).format(name=description)
                    path = f"{relation}, {fact}"
                    yield MadeQuestion("bridge", path, text, target.forms(fact), (entity, target))

    def two_facts(self, entity: Entity) -> Iterator[MadeQuestion]:
        """Yield questions that name two facts of an entity and ask for the entity."""
        for relations, wordings in TWO_FACTS.get(entity.kind, {}).items():
            values = {relation: entity.value(relation) for relation in relations}
            if not all(values.values()) or _specific_noun(entity) is None:
                continue  # the wordings have both facts and the noun
            facts = {name.replace(" ", "_"): value for name, value in values.items()}
            text = self._draw(wordings, entity.title, *relations).format(noun=entity.page.noun, **facts)
            dates = [value for name, value in values.items() if name.endswith(" date")]
            distinctive = tuple(dates or (str(value).removeprefix("the ") for value in values.values()))
            path = ", ".join(relations)
            yield MadeQuestion("two_facts", path, text, names_of(entity), (entity,), distinctive)

    def comparisons(self) -> Iterator[MadeQuestion]:
        """Yield questions about which of two came first, and whether one came before the other.

        Ties are left out.
        """
        for (kind, relation), (wordings, orders) in ORDERS.items():
            for one, other in self._pairs(kind, relation, _comparison_groups(relation)):
                value, other_value = one.value(relation), other.value(relation)
                if value == other_value:
                    continue
                first = one if value < other_value else other  # as texts, since all years have four digits
                names = {"one": one.name, "other": other.name}
                text = self._draw(wordings, one.title, other.title).format(**names)
                yield MadeQuestion("comparison", relation, text, names_of(first), (one, other))
                text = self._draw(orders, other.title, one.title).format(one=other.name, other=one.name)
                answer = "no" if first is one else "yes"
                yield MadeQuestion("yes_no", f"{relation} before", text, (answer,), (other, one))

    def same_values(self) -> Iterator[MadeQuestion]:
        """Yield questions about whether two entities have the same value.

        At most as many have the answer `no` as have the answer `yes`.
        """
        for (kind, relation), wording in SAME_VALUE.items():
            equal = list(self._pairs(kind, relation, lambda entity, name=relation: entity.value(name)))
            all_pairs = self._pairs(kind, relation, _one_group)
            different = [pair for pair in all_pairs if self._differ_surely(relation, *pair)][: len(equal)]
            for one, other in [*equal, *different]:
                answer = "yes" if one.value(relation) == other.value(relation) else "no"
                text = wording.format(one=one.name, other=other.name)
                yield MadeQuestion("yes_no", f"same {relation}", text, (answer,), (one, other))

    def nationalities(self) -> Iterator[MadeQuestion]:
        """Yield questions about whether two people of one occupation both have a certain nationality."""
        for one, other in self._pairs("person", "nationality", _specific_noun):
            nation, other_nation = one.value("nationality"), other.value("nationality")
            if nation != other_nation and not self._differ_surely("nationality", one, other):
                continue
            answer = "yes" if nation == other_nation else "no"
            if answer == "yes" and hash_words(self.seed, one.title, other.title) % 2:
                continue  # half of the pairs with yes: most people are American, so they would outnumber no
            verb = "Were" if one.value("death year") or other.value("death year") else "Are"
            text = f"{verb} {one.name} and {other.name} both {nation}?"
            yield MadeQuestion("yes_no", "both nationality", text, (answer,), (one, other))

    def _differ_surely(self, relation: str, one: Entity, other: Entity) -> bool:
        """Return whether two values certainly differ.

        Nationalities can overlap, so they must not be related, and neither passage may name the nationality
        or the country of the other entity.
        """
        value, other_value = one.value(relation) or "", other.value(relation) or ""
        if relation != "nationality" or value == other_value:
            return value != other_value
        is_named_in_other = any(word in other.text for word in nationality_forms(value))
        is_named_in_one = any(word in one.text for word in nationality_forms(other_value))
        return not (is_named_in_other or is_named_in_one or are_related(value, other_value))

    def _pairs(
        self, kind: str, relation: str, group_of: Callable[[Entity], str | None]
    ) -> Iterator[tuple[Entity, Entity]]:
        """Yield pairs of entities of a kind that have the fact, in the same split and the same group.

        The members of a group are sorted by a hash, and neighbours are paired. `group_of` returns the group
        of an entity, or None to leave it out.
        """
        groups: dict[tuple[str, str], list[Entity]] = defaultdict(list)
        for entity in self.entities:
            if entity.kind == kind and entity.value(relation) and (group := group_of(entity)) is not None:
                groups[self._splits[entity.id], group].append(entity)
        for _, members in sorted(groups.items()):
            members.sort(key=lambda entity: hash_words(self.seed, "pair", relation, entity.title))
            yield from zip(members[::2], members[1::2], strict=False)
            yield from zip(members[1::2], members[2::2], strict=False)

    def _draw(self, wordings: Sequence[str], *words: str) -> str:
        """Return the wording that a hash of the seed and these words selects."""
        return wordings[hash_words(self.seed, "wording", *words) % len(wordings)]


def names_of(entity: Entity) -> tuple[str, ...]:
    """Return the forms of an entity as an answer: with and without article, and a person's full name."""
    forms = [entity.base, entity.base.removeprefix("The ")]
    full = LIFE.match(entity.text) if entity.kind == "person" else None
    if full and re.fullmatch(NAME, full["name"]) and full["name"].split()[-1] == entity.base.split()[-1]:
        forms.append(full["name"])
    return tuple(dict.fromkeys(forms))


def names_both(question: MadeQuestion, mentions: Mentions) -> bool:
    """Return whether another passage names both facts of a `two_facts` question or, if one is a date, the
    date.

    A passage that also names the answer is about the same entity and does not count, unless there is a date.
    """
    [entity] = question.entities
    passage_ids = mentions.passages_with_all(question.distinctive_values) - {entity.id}
    has_date = " date" in question.relation
    return any(has_date or not mentions.has_name(passage_id, entity.base) for passage_id in passage_ids)


def _specific_noun(entity: Entity) -> str | None:
    """Return the noun of an entity, such as the occupation of a person; None for `person`, the noun of people
    whose occupation is not known (kinds.py)."""
    return None if entity.page.noun == "person" else entity.page.noun


def _comparison_groups(relation: str) -> Callable[[Entity], str | None]:
    """Return the function that groups entities for comparisons: people by occupation, others in one group."""
    return _specific_noun if relation == "birth year" else _one_group


def _one_group(entity: Entity) -> str:
    """Return the same group for every entity."""
    return ""
