"""The script of the memory's warm start: right when its habits are, and within the budget of the recipe."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from examples.common.scripted_episodes import play
from examples.common.scripted_sft import loss_weights
from examples.memory.traces import MIXED, RIGHT, BehaviourRates, ScriptedMemory, scripted_rows
from examples.memory.warm_start import add_memory_tokens, memory_budget, memory_protocol, memory_setup
from examples.memory.world import KINDS, fresh_pages
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import make_questions
from rag_r1.tools import search_tools

pytestmark = pytest.mark.slow  # a policy is loaded, and episodes are played

MEMORY, PLAIN = "agentic_rag_en", "rag_r1/demo/agentic_rag_plain.yaml"
ON = BehaviourRates({"on": 1.0}, {"on": 1.0})


@pytest.fixture(scope="module")
def setups():
    """The agent of each protocol."""
    protocols = {name: memory_protocol(name) for name in (MEMORY, PLAIN)}
    return {name: memory_setup(add_memory_tokens(of)[1], of) for name, of in protocols.items()}


def episodes(setup, habits, count=24, **budget):
    """(question, trajectory, ledger) of episodes by the script."""
    rng = random.Random(0)
    pages = fresh_pages(rng)
    search = WorldSearch(pages.world.passages, topk=1)
    setup = replace(setup, tools=partial(search_tools, search), budget=replace(setup.budget, **budget))
    questions = make_questions(pages.world, count, 0, KINDS)
    played = play(
        setup, questions, lambda q: ScriptedMemory(q, pages, setup.protocol, setup.codec, rng, habits)
    )
    return [(question, *episode) for question, episode in zip(questions, played, strict=True)]


def test_with_summaries_and_backtracks_every_question_is_answered_within_the_budget(setups):
    played = episodes(setups[MEMORY], RIGHT)
    actions = Counter(turn.action for _, record, _ in played for turn in record.turns)
    assert all(record.answer == question.gold for question, record, _ in played)
    assert actions["summary"] == sum(len(question.lookups) - 1 for question, _, _ in played)
    assert actions["backtrack"] > 0
    context = memory_budget().max_context_tokens
    rows = [row for _, _, ledger in played for row in ledger.rows()]
    assert max(len(row.prompt_ids) + len(row.response_ids) for row in rows) <= context


@pytest.mark.parametrize("name", [MEMORY, PLAIN])
def test_without_them_a_second_page_does_not_fit(setups, name):
    for question, record, _ in episodes(setups[name], ON):
        if sum(turn.action == "search" for turn in record.turns) > 1:
            assert record.answer != question.gold
        else:
            assert record.answer == question.gold and question.kind == "one_hop"


def test_with_room_for_all_pages_the_plain_protocol_answers_everything(setups):
    wide = {"max_response_tokens": 1000, "max_context_tokens": 1100}
    assert all(record.answer == question.gold for question, record, _ in episodes(setups[PLAIN], ON, **wide))


def test_the_plain_protocol_never_writes_a_summary_or_a_backtrack(setups):
    both = BehaviourRates({"summary": 0.9, "early": 0.1}, {"backtrack": 0.9, "guess": 0.1})
    actions = Counter(turn.action for _, record, _ in episodes(setups[PLAIN], both) for turn in record.turns)
    assert set(actions) == {"search", "answer"}


def test_a_turn_is_never_invalid_and_its_loss_is_on_what_the_script_wrote(setups):
    half = BehaviourRates({"summary": 0.5, "on": 0.5}, {"backtrack": 0.5, "on": 0.5})
    played = episodes(setups[MEMORY], half)
    assert not any(turn.action == "invalid" for _, record, _ in played for turn in record.turns)
    rows = scripted_rows(setups[MEMORY], MIXED, "warm-0", 3)
    assert rows == scripted_rows(setups[MEMORY], MIXED, "warm-0", 3)
    for row in rows:
        ids, weights = loss_weights(row, frozenset())
        assert ids == row.prompt_ids + row.response_ids
        assert weights[len(row.prompt_ids) :] == row.response_mask and not any(weights[: len(row.prompt_ids)])
