"""Traces for RAG-R1's format-learning SFT, written by rule from a world whose facts are known.

RAG-R1 cuts every trace at its search and answer points into four kinds of samples: question -> answer,
question -> search, question + information -> search, question + information -> answer. A causal model sees
the same contexts and the same targets when a trace is one sequence whose generated turns carry the loss, so
traces stay whole (`policy.encode_trace`) and `sample_kinds` says which samples a trace stands for. In the
warm start only generated turns are targets; passages never are.

A trace follows one of four strategies. The warm start mixes them, right and wrong ones alike, so that it
teaches the format and not the policy:

    guess       answer at once, with a random name of the right type
    early       answer after the first search, whatever it found
    sequential  one query a turn until every fact is found
    parallel    the queries of two independent facts in one turn (needs a protocol with max_queries > 1)

Before it acts, each turn repeats in its thoughts what has been found, which makes the next decision easy to
read off. It names what each fact is about before it gives the value ("Mara Torval: Karlen Ford"), so that the
value is copied from behind a name that has just been written. Values alone have to be found by their place in
the observation, and a policy of this size then mixes up the passages of two names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_r1.demo.world import INDEPENDENT, KINDS, YEARS, Lookup, Question, World
from rag_r1.protocols import Document, Protocol

Search = Callable[[Sequence[str]], list[list[Document]]]
#: How a thought repeats a fact.
Say = Callable[[Lookup], str]


@dataclass(frozen=True)
class Segment:
    """A stretch of a trace: a turn of the policy (`generated`), or an observation."""

    text: str
    generated: bool


Mix = dict[str, dict[str, float]]

# protocol -> kind -> strategy -> share of the traces. GOLD finds every fact in as few turns as possible, FULL
# finds it by all ways that lead there, MIXED (the warm start) often does not.
GOLD: dict[str, Mix] = {
    "rag_r1_sq": {kind: {"sequential": 1.0} for kind in KINDS},
    "rag_r1_mq": {kind: {"parallel" if kind in INDEPENDENT else "sequential": 1.0} for kind in KINDS},
}
FULL: dict[str, Mix] = {
    "rag_r1_sq": GOLD["rag_r1_sq"],
    "rag_r1_mq": GOLD["rag_r1_mq"] | {kind: {"parallel": 0.7, "sequential": 0.3} for kind in INDEPENDENT},
}
MIXED: dict[str, Mix] = {
    "rag_r1_sq": {
        "one_hop": {"guess": 0.35, "sequential": 0.65},
        "bridge": {"guess": 0.25, "early": 0.45, "sequential": 0.3},
        "comparison": {"guess": 0.25, "early": 0.45, "sequential": 0.3},
        "both": {"guess": 0.25, "early": 0.45, "sequential": 0.3},
    },
    "rag_r1_mq": {
        "one_hop": {"guess": 0.35, "sequential": 0.65},
        "bridge": {"guess": 0.25, "early": 0.45, "sequential": 0.3},
        "comparison": {"guess": 0.25, "early": 0.35, "sequential": 0.15, "parallel": 0.25},
        "both": {"guess": 0.25, "early": 0.35, "sequential": 0.15, "parallel": 0.25},
    },
}


def write_trace(
    question: Question, strategy: str, world: World, protocol: Protocol, search: Search, rng: random.Random
) -> list[Segment]:
    """The turns and observations of `question` under `strategy`; the last segment is an answer."""
    segments: list[Segment] = []
    facts = list(question.lookups)
    if strategy == "guess":
        return [Segment(_turn("I can guess.", "answer", guess(question, world, rng)), True)]
    if strategy == "early":
        rounds = [facts[:1]]
    elif strategy == "parallel" and question.kind in INDEPENDENT:
        rounds = [facts]
    else:
        rounds = [[fact] for fact in facts]
    found: list[Lookup] = []
    for step in rounds:
        queries = [fact.entity for fact in step]
        need = "I need to search for both." if len(step) > 1 else "I need to search."
        recall = _recall(question, found, named)
        segments.append(Segment(_turn(recall + need, "search", ", ".join(queries)), True))
        segments.append(Segment(protocol.observation(queries, search(queries)), False))
        found += step
    thought, answer = conclude(question, found, rng, named)
    segments.append(Segment(_turn(thought + "I know enough.", "answer", answer), True))
    return segments


def value_alone(fact: Lookup) -> str:
    """`Karlen Ford`"""
    return fact.value


def named(fact: Lookup) -> str:
    """`Mara Torval: Karlen Ford`"""
    return f"{fact.entity}: {fact.value}"


def write_drill(world: World, rng: random.Random, say: Say = named) -> tuple[Question, list[Segment]]:
    """A comparison with the years in the question and no search: practice for the decision alone."""
    people = rng.sample(list(world.facts["year"]), 2)
    years = rng.sample(YEARS, 2)
    lookups = tuple(Lookup(person, "year", year) for person, year in zip(people, years, strict=True))
    stated = " or ".join(f"{lookup.entity} {lookup.value}" for lookup in lookups)
    question = Question("drill", "comparison", f"Who was born earlier, {stated}?", "", lookups)
    thought, answer = conclude(question, lookups, rng, say)
    return question, [Segment(_turn(thought + "I know enough.", "answer", answer), True)]


def sample_kinds(segments: Sequence[Segment]) -> list[str]:
    """Which of RAG-R1's four kinds of SFT samples the turns of a trace are, in order."""
    turns = [segment.text for segment in segments if segment.generated]
    return [
        ("question" if i == 0 else "question + information")
        + (" -> answer" if i == len(turns) - 1 else " -> search")
        for i in range(len(turns))
    ]


def _turn(thought: str, action: str, body: str) -> str:
    return f"<think> {thought} </think>\n<{action}> {body} </{action}>"


def _recall(question: Question, found: Sequence[Lookup], say: Say) -> str:
    if not found:
        return ""
    if question.kind == "bridge":
        found = found[-1:]
    return ", ".join(map(say, found)) + ". "


def conclude(question: Question, found: Sequence[Lookup], rng: random.Random, say: Say) -> tuple[str, str]:
    """The last thought and the answer, from the facts found so far (which may be too few)."""
    recall = _recall(question, found, say)
    if question.kind == "comparison":
        if len(found) < len(question.lookups):
            return recall, rng.choice(question.lookups).entity
        earlier = min((0, 1), key=lambda i: found[i].value)
        return recall + f"Earlier is the {('first', 'second')[earlier]}. ", found[earlier].entity
    if question.kind == "both":
        return recall, " and ".join(fact.value for fact in found)
    return recall, found[-1].value


def guess(question: Question, world: World, rng: random.Random) -> str:
    """A random name of the right type; for two facts, two."""
    if question.kind == "comparison":
        return rng.choice(question.lookups).entity
    values = list(world.facts[question.lookups[-1].relation].values())
    return " and ".join(rng.sample(values, 2)) if question.kind == "both" else rng.choice(values)


def draw_strategy(mix: dict[str, float], rng: random.Random) -> str:
    """A strategy drawn by its share."""
    return rng.choices(list(mix), weights=list(mix.values()))[0]
