"""Draws questions about an invented world, of four kinds.

one_hop     "Where was Mara Torval born?"                            one search
bridge      "Which river flows past the birthplace of Mara Torval?"  a search, then one for its result
comparison  "Who was born earlier, Mara Torval or Belin Vesmer?"     two independent facts and a decision
both        "Where were Mara Torval and Belin Vesmer born?"          two independent facts: "X and Y"
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_r1.demo.world.facts import Lookup, World

KINDS = ("one_hop", "bridge", "comparison", "both")
#: The kinds whose two facts are independent, so that both can be looked up in one turn.
INDEPENDENT = ("comparison", "both")
#: After this number of draws in a row without a new question, a world is taken to have no others.
_MAX_MISSES = 100_000


@dataclass(frozen=True)
class Question:
    """A question about a world, with its gold answer."""

    id: str
    #: One of KINDS.
    kind: str
    text: str
    gold: str
    #: The facts that the answer needs, in the order in which they can be looked up.
    lookups: tuple[Lookup, ...]


#: What the functions below return: the text of a question, its gold answer, and the facts that it needs.
_Draw = tuple[str, str, tuple[Lookup, ...]]


def _one_hop(world: World, rng: random.Random) -> _Draw:
    """Draw a question about one fact; a birthplace is twice as frequent as another relation."""
    relation = rng.choice(("birthplace", "birthplace", "year", "river", "founder"))
    (fact,) = world.draw_lookups(relation, 1, rng)
    text = {
        "birthplace": "Where was {} born?",
        "year": "When was {} born?",
        "river": "Which river flows past {}?",
        "founder": "Who founded {}?",
    }[relation]
    return text.format(fact.entity), fact.value, (fact,)


def _bridge(world: World, rng: random.Random) -> _Draw:
    """Draw a question about a fact of the entity that another fact names."""
    if rng.random() < 0.5:
        relations, text = ("birthplace", "river"), "Which river flows past the birthplace of {}?"
    else:
        relations, text = ("founder", "birthplace"), "Where was the founder of {} born?"
    (first,) = world.draw_lookups(relations[0], 1, rng)
    second = world.lookup(relations[1], first.value)
    return text.format(first.entity), second.value, (first, second)


def _comparison(world: World, rng: random.Random) -> _Draw:
    """Draw a question about which of two persons was born earlier. Persons are drawn again until their years
    differ, so not all persons of the world may have the same one."""
    first, second = facts = world.draw_lookups("year", 2, rng)
    if first.value == second.value:
        return _comparison(world, rng)
    earlier = min(facts, key=lambda fact: fact.value)  # years, as texts of four digits
    return f"Who was born earlier, {first.entity} or {second.entity}?", earlier.entity, facts


def _both(world: World, rng: random.Random) -> _Draw:
    """Draw a question about the same relation of two entities."""
    relation = rng.choice(("birthplace", "founder"))
    facts = world.draw_lookups(relation, 2, rng)
    text = {"birthplace": "Where were {} and {} born?", "founder": "Who founded {} and {}?"}[relation]
    return text.format(*(fact.entity for fact in facts)), " and ".join(fact.value for fact in facts), facts


_DRAWS = {"one_hop": _one_hop, "bridge": _bridge, "comparison": _comparison, "both": _both}


def draw_question(world: World, kind: str, rng: random.Random, id_: str) -> Question:
    """Draw a question of one of the `KINDS`. Raises ValueError if the world has too few entities for it."""
    text, gold, lookups = _DRAWS[kind](world, rng)
    return Question(id_, kind, text, gold, lookups)


def make_questions(
    world: World,
    count: int,
    seed: int | str,
    kinds: Sequence[str] = KINDS,
    draw: Callable[[World, str, random.Random, str], Question] = draw_question,
    name: str = "questions",
) -> list[Question]:
    """Draw `count` different questions, in random order.

    The `kinds` have equal shares; a kind that is listed twice has twice the share. `draw` draws a question of
    a kind with an id, and `name` becomes a part of the random seed. Raises ValueError if the world is too
    small for so many questions.
    """
    rng = random.Random(f"{name}-{seed}-{world.split}")
    by_text: dict[str, Question] = {}
    misses = 0
    while len(by_text) < count:
        question = draw(world, kinds[len(by_text) % len(kinds)], rng, f"{world.split}-{len(by_text)}")
        if question.text not in by_text:
            by_text[question.text] = question
            misses = 0
        elif (misses := misses + 1) > _MAX_MISSES:
            raise ValueError(f"this world does not have {count} different questions: ask for fewer")
    questions = list(by_text.values())
    rng.shuffle(questions)
    return questions
