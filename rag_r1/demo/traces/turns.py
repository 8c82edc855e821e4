"""The turns of a trace: thoughts, searches and answers in words.

Before it acts, each turn repeats in its thoughts the facts that are known, which makes the next decision
easy. It names what each fact is about before it gives the value ("Mara Torval: Karlen Ford"), so that the
value can be copied from after the same name in the observation. A bare value has to be found by its position,
and a policy of this size then confuses the passages of two names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rag_r1.demo.world import Lookup, Question, World

#: How a fact is worded in a thought.
FactFormat = Callable[[Lookup], str]


def value_text(fact: Lookup) -> str:
    """The bare value, such as `Karlen Ford`."""
    return fact.value


def entity_value_text(fact: Lookup) -> str:
    """The value after what it is about, such as `Mara Torval: Karlen Ford`."""
    return f"{fact.entity}: {fact.value}"


def turn(thought: str, action: str, body: str) -> str:
    """The text of a turn: a thought and an action, `search` or `answer`, with its `body`."""
    return f"<think> {thought} </think>\n<{action}> {body} </{action}>"


def search_turn(question: Question, facts: Sequence[Lookup], step: Sequence[Lookup]) -> str:
    """A turn that repeats the `facts` and searches for those of `step`."""
    need = "I need to search for both." if len(step) > 1 else "I need to search."
    thought = _recall(question, facts, entity_value_text) + need
    return turn(thought, "search", ", ".join(fact.entity for fact in step))


def answer_turn(thought: str, answer: str) -> str:
    """The last turn; `thought` is what `conclude` returns."""
    return turn(thought + "I know enough.", "answer", answer)


def conclude(
    question: Question, facts: Sequence[Lookup], rng: random.Random, fact_format: FactFormat
) -> tuple[str, str]:
    """The last thought and the answer, from the facts that are known: at least one, perhaps too few. Raises
    ValueError for none."""
    if not facts:
        raise ValueError("no fact is known: `guess` answers without one")
    recall = _recall(question, facts, fact_format)
    if question.kind == "comparison":
        if len(facts) < len(question.lookups):
            return recall, rng.choice(question.lookups).entity
        earlier = min((0, 1), key=lambda i: facts[i].value)  # years, as texts of four digits
        return recall + f"Earlier is the {('first', 'second')[earlier]}. ", facts[earlier].entity
    if question.kind == "both":
        return recall, " and ".join(fact.value for fact in facts)
    return recall, facts[-1].value


def guess(question: Question, world: World, rng: random.Random) -> str:
    """A random name of the right type; two names if the question asks for two facts."""
    if question.kind == "comparison":
        return rng.choice(question.lookups).entity
    values = list(world.facts[question.lookups[-1].relation].values())
    return " and ".join(rng.sample(values, 2)) if question.kind == "both" else rng.choice(values)


def _recall(question: Question, facts: Sequence[Lookup], fact_format: FactFormat) -> str:
    """The known facts as the beginning of a thought."""
    if not facts:
        return ""
    if question.kind == "bridge":  # the last fact is the entity of the next search, or the answer
        facts = facts[-1:]
    return ", ".join(map(fact_format, facts)) + ". "
