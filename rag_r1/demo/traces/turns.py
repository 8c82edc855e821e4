"""Words the turns of a trace: thoughts, searches and answers.

The thought of each turn repeats the facts that are known, which makes the next decision easy. For each fact
it first says what the fact is about, and then the value ("Mara Torval: Karlen Ford"). The policy can then
copy the value that follows the same name in the observation. A bare value would have to be found by its
position, and a policy of this size then confuses the passages about two names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rag_r1.demo.world import Lookup, Question, World

#: Words a fact in a thought.
FactFormat = Callable[[Lookup], str]


def value_text(fact: Lookup) -> str:
    """Word a fact as its bare value, such as `Karlen Ford`."""
    return fact.value


def entity_value_text(fact: Lookup) -> str:
    """Word a fact as its entity and its value, such as `Mara Torval: Karlen Ford`."""
    return f"{fact.entity}: {fact.value}"


def turn(thought: str, action: str, body: str) -> str:
    """Format a turn: a thought, and an action (`search` or `answer`) with its `body`."""
    return f"<think> {thought} </think>\n<{action}> {body} </{action}>"


def search_turn(question: Question, facts: Sequence[Lookup], sought: Sequence[Lookup]) -> str:
    """Write a turn that repeats the known `facts`, and searches for the `sought` ones."""
    need = "I need to search for both." if len(sought) > 1 else "I need to search."
    thought = _recall(question, facts, entity_value_text) + need
    return turn(thought, "search", ", ".join(fact.entity for fact in sought))


def answer_turn(thought: str, answer: str) -> str:
    """Write the last turn. `thought` is the one that `conclude` returns."""
    return turn(thought + "I know enough.", "answer", answer)


def conclude(
    question: Question, facts: Sequence[Lookup], rng: random.Random, fact_format: FactFormat
) -> tuple[str, str]:
    """Conclude the answer from the known facts, in the order of the question's lookups; returns (last
    thought, answer).

    If only one fact of a comparison is known, the answer is a guess. Raises ValueError without any fact.
    """
    if not facts:
        raise ValueError("no fact is known: `guess` answers without one")
    recall = _recall(question, facts, fact_format)
    if question.kind == "comparison":
        if len(facts) < len(question.lookups):
            return recall, rng.choice(question.lookups).entity
        earlier = min(facts, key=lambda fact: fact.value)  # years, as texts of four digits
        ordinal = "first" if earlier == facts[0] else "second"
        return f"{recall}Earlier is the {ordinal}. ", earlier.entity
    if question.kind == "both":
        return recall, " and ".join(fact.value for fact in facts)
    return recall, facts[-1].value


def guess(question: Question, world: World, rng: random.Random) -> str:
    """Draw a name of the right type, or two names if the question asks for two facts."""
    if question.kind == "comparison":
        return rng.choice(question.lookups).entity
    values = list(world.facts[question.lookups[-1].relation].values())
    return " and ".join(rng.sample(values, 2)) if question.kind == "both" else rng.choice(values)


def _recall(question: Question, facts: Sequence[Lookup], fact_format: FactFormat) -> str:
    """Write the known facts as the beginning of a thought."""
    if not facts:
        return ""
    if question.kind == "bridge":  # only the last fact matters: it is searched for next, or is the answer
        facts = facts[-1:]
    return ", ".join(map(fact_format, facts)) + ". "
