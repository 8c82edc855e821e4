"""Scripted episodes for the warm start in the misleading world, with randomly drawn behaviour.

`ScriptedSearcher` takes the place of the policy in a real episode (`rag_r1.agent.Episode`). It searches for a
name. If the returned passage lacks the fact, it either searches again, adding a word for the relation to the
name, or guesses; after a second miss it always guesses. When it has a fact, it searches for the next one, or
answers too early.

Its search does not rank by similarity: it returns the right passage or, at random, another one with the same
title. The policy therefore learns to read each kind of passage, independently of the retriever with which it
is trained later.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from examples.agentic_r.world import WORDING, MisleadingWorld, draw_questions, fresh_misleading_world
from examples.common.scripted_episodes import Script, play_rows
from rag_r1.agent import Codec, TrainingRow
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.demo.traces.turns import answer_turn, conclude, entity_value_text, guess, search_turn
from rag_r1.demo.world import Lookup, Question
from rag_r1.protocols import Document
from rag_r1.tools import search_tools

#: Episodes in a batch of supervised training.
BATCH = 24
#: Share of the searches that return the right passage.
GOLD_SHARE = 0.6


@dataclass(frozen=True)
class BehaviourRates:
    """How often the script does the right thing, as shares from 0 to 1."""

    #: Share of the questions for which the script searches at all.
    search: float
    #: Share of the facts after which it searches for the next one.
    go_on: float
    #: Share of the first misses after which it searches again.
    again: float


#: A script that makes many mistakes, and one that makes none.
MIXED = BehaviourRates(search=0.8, go_on=0.6, again=0.6)
RIGHT = BehaviourRates(search=1.0, go_on=1.0, again=1.0)


@dataclass
class NoisySearch:
    """A search that returns the right passage or, at random, another one with the same title."""

    by_title: Mapping[str, Sequence[dict[str, str]]]
    rng: random.Random
    #: The right passage for the next search, which the script sets.
    gold: dict[str, str] | None = None

    @classmethod
    def of(cls, world: MisleadingWorld, rng: random.Random) -> NoisySearch:
        """Return a search over a world's passages."""
        by_title = defaultdict(list)
        for passage in world.world.passages:
            by_title[_title(passage)].append(passage)
        return cls(by_title, rng)

    async def search(self, queries: Sequence[str]) -> list[list[Document]]:
        """Return one passage for each query; the text of the query does not matter."""
        return [self._draw() for _ in queries]

    def _draw(self) -> list[Document]:
        """Return the right passage or, at random, another one with its title."""
        assert self.gold is not None  # the script has set it
        passage = self.gold
        if self.rng.random() >= GOLD_SHARE:
            passage = self.rng.choice([p for p in self.by_title[_title(passage)] if p is not passage])
        return [Document(passage["id"], passage["contents"])]


@dataclass
class ScriptedSearcher(Script):
    """A script that searches for one fact after the other, and at random makes mistakes."""

    question: Question
    world: MisleadingWorld
    codec: Codec
    search: NoisySearch
    rng: random.Random
    rates: BehaviourRates = MIXED
    _lookups: list[Lookup] = field(default_factory=list)
    _searches: int = 0  # number of searches for the current fact

    def turn(self, context: str) -> str:
        """Return the text of the next turn, which depends on the last passage in the context."""
        fact = self.question.lookups[len(self._lookups)]
        if not self._searches:
            wants_search = bool(self._lookups) or self._with_probability(self.rates.search)
            return self._search(fact) if wants_search else self._guess()
        if _text(self.world.passage_of(fact)) in context[context.rfind("<information>") :]:
            return self._after_fact(fact)
        if self._searches == 1 and self._with_probability(self.rates.again):
            return self._search(fact)
        return self._guess()

    def _after_fact(self, fact: Lookup) -> str:
        """Return the turn after a passage with the fact: a search for the next fact, or an answer."""
        self._lookups.append(fact)
        self._searches = 0
        if len(self._lookups) < len(self.question.lookups) and self._with_probability(self.rates.go_on):
            return self._search(self.question.lookups[len(self._lookups)])
        thought, answer = conclude(self.question, self._lookups, self.rng, entity_value_text)
        return answer_turn(thought, answer)

    def _search(self, fact: Lookup) -> str:
        """Return a turn that searches for a fact; the second search adds a word for the relation."""
        query = fact.entity if not self._searches else f"{fact.entity} {WORDING[fact.relation].query_words}"
        self._searches += 1
        self.search.gold = self.world.passage_of(fact)
        return search_turn(self.question, self._lookups, [replace(fact, entity=query)])

    def _guess(self) -> str:
        """Return a turn that answers with a random name of the right type."""
        answer = guess(self.question, self.world.world, self.rng)
        return f"<think> I can guess. </think>\n<answer> {answer} </answer>"

    def _with_probability(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < probability


def scripted_rows(setup: AgentSetup, rates: BehaviourRates, seed: str, step: int) -> list[TrainingRow]:
    """Return the training rows of a batch of scripted episodes about a new world.

    The same arguments give the same rows.
    """
    rng = random.Random(f"{seed}-{step}")
    world = fresh_misleading_world(rng)
    search = NoisySearch.of(world, rng)
    setup = replace(setup, tools=lambda: search_tools(search))
    questions = draw_questions(world.world, BATCH, rng.randrange(1 << 48))
    return play_rows(
        setup, questions, lambda question: ScriptedSearcher(question, world, setup.codec, search, rng, rates)
    )


def _title(passage: Mapping[str, str]) -> str:
    """Return the first line of a passage, without its quotation marks."""
    return passage["contents"].split("\n")[0].strip('"')


def _text(passage: Mapping[str, str]) -> str:
    """Return the line of a passage below its title."""
    return passage["contents"].split("\n")[1]
