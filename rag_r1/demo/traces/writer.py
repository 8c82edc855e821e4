"""Writes a trace: the turns and the observations of a question, by a strategy.

A round is a search, for one fact or for two. Each round adds a turn of the policy and the observation with
which the search answers it; after the last one comes the turn with the answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_r1.demo.names import YEARS
from rag_r1.demo.traces.mixes import Strategy
from rag_r1.demo.traces.turns import (
    FactFormat,
    answer_turn,
    conclude,
    entity_value_text,
    guess,
    search_turn,
    turn,
)
from rag_r1.demo.world import INDEPENDENT, Lookup, Question, World
from rag_r1.protocols import Document, Protocol

Search = Callable[[Sequence[str]], list[list[Document]]]


@dataclass(frozen=True)
class Segment:
    """A part of a trace: a turn of the policy (`generated`), or an observation."""

    text: str
    generated: bool


def write_trace(
    question: Question,
    strategy: Strategy,
    world: World,
    protocol: Protocol,
    search: Search,
    rng: random.Random,
) -> list[Segment]:
    """The turns and observations of `question` under `strategy`; the last segment is an answer. Raises
    ValueError for an unknown strategy."""
    match strategy:
        case "guess":
            return [Segment(turn("I can guess.", "answer", guess(question, world, rng)), True)]
        case "early":
            rounds = [list(question.lookups[:1])]
        case "sequential" | "parallel":
            rounds = rounds_of(question, strategy == "parallel")
        case _:
            raise ValueError(f"unknown strategy {strategy!r}")
    segments: list[Segment] = []
    facts: list[Lookup] = []
    for step in rounds:
        queries = [fact.entity for fact in step]
        segments.append(Segment(search_turn(question, facts, step), True))
        segments.append(Segment(protocol.observation(queries, search(queries)), False))
        facts += step
    thought, answer = conclude(question, facts, rng, entity_value_text)
    segments.append(Segment(answer_turn(thought, answer), True))
    return segments


def rounds_of(question: Question, parallel: bool) -> list[list[Lookup]]:
    """The facts that each search looks up: one a search, or independent ones together if `parallel`."""
    facts = list(question.lookups)
    return [facts] if parallel and question.kind in INDEPENDENT else [[fact] for fact in facts]


def write_drill(
    world: World, rng: random.Random, fact_format: FactFormat = entity_value_text
) -> tuple[Question, list[Segment]]:
    """A comparison with the years given in the question and no search: an exercise in the decision alone."""
    people = rng.sample(list(world.facts["year"]), 2)
    years = rng.sample(YEARS, 2)
    lookups = tuple(Lookup(person, "year", year) for person, year in zip(people, years, strict=True))
    stated = " or ".join(f"{lookup.entity} {lookup.value}" for lookup in lookups)
    question = Question("drill", "comparison", f"Who was born earlier, {stated}?", "", lookups)
    thought, answer = conclude(question, lookups, rng, fact_format)
    return question, [Segment(answer_turn(thought, answer), True)]


def sample_kinds(segments: Sequence[Segment]) -> list[str]:
    """The kind of SFT sample, of RAG-R1's four, that each turn of a trace is, in order."""
    turns = [segment.text for segment in segments if segment.generated]
    return [
        ("question" if i == 0 else "question + information")
        + (" -> answer" if i == len(turns) - 1 else " -> search")
        for i in range(len(turns))
    ]
