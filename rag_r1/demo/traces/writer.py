"""Writes the trace of a question by a strategy, as a list of turns and observations.

A trace consists of rounds and an answer. In each round the policy searches for one or two facts, which adds a
turn and the observation with the results. The last turn gives the answer. `write_drill` writes an exercise of
one turn, and `sample_kinds` names the kinds of SFT samples in a trace.
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
from rag_r1.sft.segment import sample_kind

#: Returns the documents for each query.
SearchFunction = Callable[[Sequence[str]], list[list[Document]]]


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
    search: SearchFunction,
    rng: random.Random,
) -> list[Segment]:
    """Write the turns and observations of a question; the last segment is the answer.

    `search` finds the passages of the `world`, and `rng` draws what the policy guesses. Raises ValueError for
    an unknown strategy.
    """
    match strategy:
        case "guess":
            return [Segment(turn("I can guess.", "answer", guess(question, world, rng)), True)]
        case "early":
            rounds = [list(question.lookups[:1])]
        case "sequential" | "parallel":
            rounds = rounds_of(question, parallel=strategy == "parallel")
        case _:
            raise ValueError(f"unknown strategy {strategy!r}")
    segments: list[Segment] = []
    facts: list[Lookup] = []
    for sought in rounds:
        queries = [fact.entity for fact in sought]
        segments.append(Segment(search_turn(question, facts, sought), True))
        segments.append(Segment(protocol.observation(queries, search(queries)), False))
        facts += sought
    thought, answer = conclude(question, facts, rng, entity_value_text)
    segments.append(Segment(answer_turn(thought, answer), True))
    return segments


def rounds_of(question: Question, parallel: bool) -> list[list[Lookup]]:
    """Return the facts that each search looks up.

    With `parallel`, independent facts are looked up in one search; otherwise each search is for one fact.
    """
    facts = list(question.lookups)
    return [facts] if parallel and question.kind in INDEPENDENT else [[fact] for fact in facts]


def write_drill(
    world: World, rng: random.Random, fact_format: FactFormat = entity_value_text
) -> tuple[Question, list[Segment]]:
    """Write an exercise in comparing, and return its question and its only turn. The years are in the
    question, so that no search is needed; `fact_format` words them in the thought."""
    people = rng.sample(list(world.facts["year"]), 2)
    years = rng.sample(YEARS, 2)
    lookups = tuple(Lookup(person, "year", year) for person, year in zip(people, years, strict=True))
    births = " or ".join(f"{lookup.entity} {lookup.value}" for lookup in lookups)
    question = Question("drill", "comparison", f"Who was born earlier, {births}?", "", lookups)
    thought, answer = conclude(question, lookups, rng, fact_format)
    return question, [Segment(answer_turn(thought, answer), True)]


def sample_kinds(segments: Sequence[Segment]) -> list[str]:
    """Return the kind of SFT sample to which each turn of a trace corresponds, in order."""
    last = sum(segment.generated for segment in segments) - 1
    return [sample_kind(after_observation=i > 0, answers=i == last) for i in range(last + 1)]
