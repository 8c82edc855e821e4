"""Writes rule-based traces for format-learning SFT from the known facts of a world.

RAG-R1 splits every trace at its searches and its answer into four kinds of samples: question -> answer,
question -> search, question + information -> search, question + information -> answer. A causal model gets
the same contexts and targets from one sequence whose generated turns carry the loss, so traces are kept whole
(`policy.encode_trace`), and `sample_kinds` says which samples a trace corresponds to. In the warm start only
generated turns are targets, never passages.

A trace follows one of four strategies. The warm start mixes right and wrong ones, so that it teaches the
format and not what to do:

    guess       answer at once, with a random name of the right type
    early       answer after the first search, whatever it returned
    sequential  one query a turn until every fact is found
    parallel    the queries of two independent facts in one turn (needs a protocol with max_queries > 1)

Before it acts, each turn repeats in its thoughts what has been found, which makes the next decision easy. It
names what each fact is about before it gives the value ("Mara Torval: Karlen Ford"), so that the value can be
copied from after the same name in the observation. A bare value has to be found by its position, and a policy
of this size then confuses the passages of two names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_r1.demo.world import INDEPENDENT, KINDS, YEARS, Lookup, Question, World
from rag_r1.protocols import Document, Protocol

Search = Callable[[Sequence[str]], list[list[Document]]]
#: How a fact is worded in a thought.
Say = Callable[[Lookup], str]


@dataclass(frozen=True)
class Segment:
    """A part of a trace: a turn of the policy (`generated`), or an observation."""

    text: str
    generated: bool


Mix = dict[str, dict[str, float]]

# protocol -> kind -> strategy -> share of the traces. GOLD finds every fact in as few turns as possible, FULL
# in all ways that work, MIXED (the warm start) often fails to.
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
    rounds = [facts[:1]] if strategy == "early" else rounds_of(question, strategy == "parallel")
    known: list[Lookup] = []
    for step in rounds:
        queries = [fact.entity for fact in step]
        segments.append(Segment(search_turn(question, known, step), True))
        segments.append(Segment(protocol.observation(queries, search(queries)), False))
        known += step
    thought, answer = conclude(question, known, rng, entity_value_text)
    segments.append(Segment(answer_turn(thought, answer), True))
    return segments


def rounds_of(question: Question, parallel: bool) -> list[list[Lookup]]:
    """The facts that each search looks up: one a search, or independent ones together if `parallel`."""
    facts = list(question.lookups)
    return [facts] if parallel and question.kind in INDEPENDENT else [[fact] for fact in facts]


def search_turn(question: Question, known: Sequence[Lookup], step: Sequence[Lookup]) -> str:
    """A turn that repeats what was `found` and searches for the facts of `step`."""
    need = "I need to search for both." if len(step) > 1 else "I need to search."
    thought = _recall(question, known, entity_value_text) + need
    return _turn(thought, "search", ", ".join(fact.entity for fact in step))


def answer_turn(thought: str, answer: str) -> str:
    """The last turn; `thought` is what `conclude` returns."""
    return _turn(thought + "I know enough.", "answer", answer)


def value_text(fact: Lookup) -> str:
    """`Karlen Ford`"""
    return fact.value


def entity_value_text(fact: Lookup) -> str:
    """`Mara Torval: Karlen Ford`"""
    return f"{fact.entity}: {fact.value}"


def write_drill(
    world: World, rng: random.Random, say: Say = entity_value_text
) -> tuple[Question, list[Segment]]:
    """A comparison with the years given in the question and no search: an exercise in the decision alone."""
    people = rng.sample(list(world.facts["year"]), 2)
    years = rng.sample(YEARS, 2)
    lookups = tuple(Lookup(person, "year", year) for person, year in zip(people, years, strict=True))
    stated = " or ".join(f"{lookup.entity} {lookup.value}" for lookup in lookups)
    question = Question("drill", "comparison", f"Who was born earlier, {stated}?", "", lookups)
    thought, answer = conclude(question, lookups, rng, say)
    return question, [Segment(answer_turn(thought, answer), True)]


def sample_kinds(segments: Sequence[Segment]) -> list[str]:
    """For each turn of a trace, in order, which of RAG-R1's four kinds of SFT samples it is."""
    turns = [segment.text for segment in segments if segment.generated]
    return [
        ("question" if i == 0 else "question + information")
        + (" -> answer" if i == len(turns) - 1 else " -> search")
        for i in range(len(turns))
    ]


def _turn(thought: str, action: str, body: str) -> str:
    return f"<think> {thought} </think>\n<{action}> {body} </{action}>"


def _recall(question: Question, known: Sequence[Lookup], say: Say) -> str:
    if not known:
        return ""
    if question.kind == "bridge":
        known = known[-1:]
    return ", ".join(map(say, known)) + ". "


def conclude(question: Question, known: Sequence[Lookup], rng: random.Random, say: Say) -> tuple[str, str]:
    """The last thought and the answer, from the facts found so far (which may be too few)."""
    recall = _recall(question, known, say)
    if question.kind == "comparison":
        if len(known) < len(question.lookups):
            return recall, rng.choice(question.lookups).entity
        earlier = min((0, 1), key=lambda i: known[i].value)
        return recall + f"Earlier is the {('first', 'second')[earlier]}. ", known[earlier].entity
    if question.kind == "both":
        return recall, " and ".join(fact.value for fact in known)
    return recall, known[-1].value


def guess(question: Question, world: World, rng: random.Random) -> str:
    """A random name of the right type; two names if the question asks for two facts."""
    if question.kind == "comparison":
        return rng.choice(question.lookups).entity
    values = list(world.facts[question.lookups[-1].relation].values())
    return " and ".join(rng.sample(values, 2)) if question.kind == "both" else rng.choice(values)


def draw_strategy(mix: dict[str, float], rng: random.Random) -> str:
    """A random strategy, drawn according to the shares in `mix`."""
    return rng.choices(list(mix), weights=list(mix.values()))[0]
