"""Scripted episodes for the warm starts of the memory experiment, with randomly drawn behaviour.

`ScriptedMemory` takes the place of the policy in a real episode (`rag_r1.agent.Episode`) in a world of pages
(world.py). It knows the facts and their pages, and chooses at random in the two situations where a memory
matters:

    after_fact  a page has the fact that was searched for, and another fact is needed
                summary    write the facts down; the summary replaces the page
                early      answer with the facts so far
                on         search for the next fact at once, with the page still in the context
    referred    a page refers to another name
                backtrack  write the reference down; search and page are removed from the context
                guess      answer with a random name of the right type
                on         search for that name at once

After a page that was cut, and so has lost its ending, it guesses.

Only a summary or a backtrack leaves room for another page, and the script chooses them less often than all
alternatives together, so that reinforcement learning can improve on it. With a protocol that lacks these
blocks it chooses among the other actions, in the same proportions. These are the rates MIXED. With RIGHT it
always writes a summary or a backtrack, so the protocol must have both.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from examples.common.scripted_episodes import Script, play_rows
from examples.memory.world import KINDS, PageWorld, fresh_pages, reference_line
from rag_r1.agent import Codec, TrainingRow
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.traces.turns import conclude, entity_value_text, guess
from rag_r1.demo.world import Lookup, Question, make_questions
from rag_r1.protocols import Protocol
from rag_r1.tools import search_tools

#: Episodes in a batch of supervised training.
BATCH = 16
#: Action of the script -> its relative frequency.
ActionRates = Mapping[str, float]
#: The rates of a script that makes many mistakes, in the two situations.
AFTER_FACT: ActionRates = {"summary": 0.3, "early": 0.45, "on": 0.25}
REFERRED: ActionRates = {"backtrack": 0.3, "guess": 0.45, "on": 0.25}


class BehaviourRates(NamedTuple):
    """How often the script takes each action after a page."""

    #: After a page that has the fact.
    after_fact: ActionRates
    #: After a page that refers to another name.
    referred: ActionRates


#: A script that makes many mistakes, and one that makes none.
MIXED = BehaviourRates(AFTER_FACT, REFERRED)
RIGHT = BehaviourRates({"summary": 1.0}, {"backtrack": 1.0})


@dataclass
class ScriptedMemory(Script):
    """A script that searches for the facts of a question, and chooses at random what it does after a page."""

    question: Question
    pages: PageWorld
    protocol: Protocol
    codec: Codec
    rng: random.Random
    rates: BehaviourRates = MIXED
    #: The facts so far; the entity of each is the name of the page that had it.
    _lookups: list[Lookup] = field(default_factory=list)
    #: Whether the last turn was a search.
    _expects_page: bool = False
    #: Whether a page has referred to the name that is searched for.
    _referred: bool = False
    #: Whether the facts are in a summary.
    _is_summarised: bool = False

    def turn(self, context: str) -> str:
        """Return the text of the next turn; after a search it depends on the last page in the context."""
        if not self._expects_page:
            return self._search()
        self._expects_page = False
        fact = self.question.lookups[len(self._lookups)]
        fact_page = self.pages.fact_page(fact.entity)
        page = context[context.rfind(self.protocol.tags.information.open) :]
        if self.pages.fact_texts[fact.entity] in page:
            return self._after_fact(replace(fact, entity=fact_page))
        if reference_line(fact.entity, fact_page) in page:
            return self._after_reference(fact.entity, fact_page)
        return self._guess()

    def _after_fact(self, fact: Lookup) -> str:
        """Return the turn after a page with the fact: a summary, an answer, or the next search."""
        self._lookups.append(fact)
        self._referred = self._is_summarised = False
        if len(self._lookups) == len(self.question.lookups):
            return self._answer()
        choice = self._draw(self.rates.after_fact)
        if choice == "summary":
            self._is_summarised = True
            return self._block("summary", self._facts() + ".")
        return self._answer() if choice == "early" else self._search()

    def _after_reference(self, entity: str, fact_page: str) -> str:
        """Return the turn after a page that refers to `fact_page`: a backtrack, a guess, or a search."""
        choice = self._draw(self.rates.referred)
        self._referred = True
        if choice == "backtrack":
            return self._block("backtrack", reference_line(entity, fact_page))
        return self._guess() if choice == "guess" else self._search()

    def _search(self) -> str:
        """Return a turn that recalls the facts that are not in a summary, and searches for the next one."""
        entity = self.question.lookups[len(self._lookups)].entity
        self._expects_page = True
        tool = self.protocol.queries.names[0][0]  # the dialect's name of the first tool, the search
        recall = f"{self._facts()}. " if self._lookups and not self._is_summarised else ""
        name = self.pages.fact_page(entity) if self._referred else entity
        query = self._block("call", f"[{tool}]: {name}")
        return self._block("think", f"{recall}I need to search.") + "\n" + query

    def _answer(self) -> str:
        """Return a turn that answers from the facts so far."""
        thought, answer = conclude(self.question, self._lookups, self.rng, entity_value_text)
        return self._block("think", f"{thought}I know enough.") + "\n" + self._block("answer", answer)

    def _guess(self) -> str:
        """Return a turn that answers with a random name of the right type."""
        answer = guess(self.question, self.pages.world, self.rng)
        return self._block("think", "I can guess.") + "\n" + self._block("answer", answer)

    def _facts(self) -> str:
        """Return the facts so far as text."""
        return ", ".join(map(entity_value_text, self._lookups))

    def _draw(self, rates: ActionRates) -> str:
        """Draw an action, without those for which the protocol lacks the block."""
        possible = {block.role for block in self.protocol.blocks} | {"early", "guess", "on"}
        possible_rates = {action: rate for action, rate in rates.items() if action in possible}
        return self.rng.choices(list(possible_rates), list(possible_rates.values()))[0]

    def _block(self, role: str, text: str) -> str:
        """Put a text into the protocol's block for a role."""
        block = next(block for block in self.protocol.blocks if block.role == role)
        return f"{block.open} {text} {block.close}"


def scripted_rows(setup: AgentSetup, rates: BehaviourRates, seed: str, step: int) -> list[TrainingRow]:
    """Return the training rows of a batch of scripted episodes about a new world.

    The same arguments give the same rows.
    """
    rng = random.Random(f"{seed}-{step}")
    pages = fresh_pages(rng)
    setup = replace(setup, tools=partial(search_tools, WorldSearch(pages.world.passages, topk=1)))
    questions = make_questions(pages.world, BATCH, rng.randrange(1 << 48), KINDS)
    return play_rows(
        setup,
        questions,
        lambda question: ScriptedMemory(question, pages, setup.protocol, setup.codec, rng, rates),
    )
