"""The script of the warm start in the misleading world: it asks again where a passage lacks the fact."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from examples.agentic_r.traces import MIXED, RIGHT, NoisySearch, ScriptedSearcher, scripted_rows
from examples.agentic_r.warm_start import PROTOCOL, budget, protocol
from examples.agentic_r.world import WORDING, draw_questions, fresh_misleading_world
from rag_r1.demo.policy import demo_setup, load_policy, policy_path
from rag_r1.demo.search import WorldSearch
from rag_r1.protocols import Document
from rag_r1.tools import search_tools

pytestmark = pytest.mark.slow  # a policy is loaded, and episodes are played


class Always:
    """Finds for each query the passage of the fact, or always its near-duplicate."""

    def __init__(self, world, near: bool):
        self.world, self.near = world, near

    async def search(self, queries):
        results = []
        for query in queries:
            name = " ".join(query.split()[:2])
            stated = [p for (entity, _), p in self.world.stated.items() if entity == name]
            wanted = [p for p in self.world.world.passages if p["id"] == f"{stated[0]['id']}-near"]
            (passage,) = wanted if self.near else stated[:1]
            results.append([Document(passage["id"], passage["contents"])])
        return results


@pytest.fixture(scope="module")
def setup():
    _, tokenizer = load_policy(policy_path(PROTOCOL))
    return demo_setup(tokenizer, protocol(), budget(), WorldSearch([{"id": "0", "contents": "nothing"}]))


def play(setup, habits, search=None, count=24):
    rng = random.Random(0)
    world = fresh_misleading_world(rng)
    drawn = NoisySearch.of(world, rng)
    tools = search(world) if search else drawn
    setup = replace(setup, tools=lambda: search_tools(tools))
    played = []

    async def run():
        for question in draw_questions(world.world, count, 0):
            episode = setup.episode(ScriptedSearcher(question, world, setup.codec, drawn, rng, habits))
            played.append((question, await episode.run("a", question.text, setup.prompt_ids(question.text))))

    asyncio.run(run())
    return played


def test_with_only_near_duplicates_it_asks_twice_and_guesses(setup):
    for question, record in play(setup, RIGHT, lambda world: Always(world, near=True)):
        first = question.lookups[0]
        queries = [call.arguments["query"] for turn in record.turns for call in turn.calls]
        assert queries == [first.entity, f"{first.entity} {WORDING[first.relation][2]}"]
        assert record.status == "answered"


def test_every_well_formed_episode_fits_the_budget_and_right_ones_answer_from_what_they_found(setup):
    right = 0
    for question, record in play(setup, RIGHT, count=48):
        assert record.status == "answered" and len(record.turns) <= budget().max_turns + 1
        text = " ".join(
            d.contents for turn in record.turns for documents in turn.documents for d in documents
        )
        if all(f" {fact.value}." in text for fact in question.lookups):
            right += record.answer == question.gold
    assert right > 10


def test_mixed_habits_sometimes_do_not_search_and_sometimes_stop_early(setup):
    played = play(setup, MIXED, count=57)
    assert 0 < sum(record.n_searches == 0 for _, record in played) < 57
    assert any(r.n_searches == 1 and q.kind == "both" and " and " not in r.answer for q, r in played)


def test_rows_depend_on_seed_and_step_alone(setup):
    def ids(seed, step):
        return [row.response_ids for row in scripted_rows(setup, MIXED, seed, step)]

    assert ids("a", 1) == ids("a", 1) != ids("a", 2)
    assert ids("a", 1) != ids("b", 1)
