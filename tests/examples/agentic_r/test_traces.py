"""The script of the warm start in the misleading world: it asks again where a passage lacks the fact."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from examples.agentic_r.traces import MIXED, RIGHT, NoisySearch, ScriptedSearcher, scripted_rows
from examples.agentic_r.warm_start import PROTOCOL, budget, protocol
from examples.agentic_r.world import WORDING, draw_questions, fresh_misleading_world
from examples.common.scripted_episodes import play, script_setup
from rag_r1.demo.policy import load_policy, policy_path
from rag_r1.protocols import Document
from rag_r1.tools import search_tools

pytestmark = pytest.mark.slow  # a policy is loaded, and episodes are played


class AlwaysNear:
    """Finds for each query the near-duplicate of a passage about its name."""

    def __init__(self, world):
        self.passages = {passage["id"]: passage for passage in world.world.passages}
        self.stated = {entity: passage["id"] for (entity, _), passage in reversed(world.stated.items())}

    async def search(self, queries):
        names = [" ".join(query.split()[:2]) for query in queries]
        near = [self.passages[f"{self.stated[name]}-near"] for name in names]
        return [[Document(passage["id"], passage["contents"])] for passage in near]


@pytest.fixture(scope="module")
def setup():
    _, tokenizer = load_policy(policy_path(PROTOCOL))
    return script_setup(tokenizer, protocol(), budget())


def episodes(setup, habits, search=None, count=24):
    """(question, trajectory) of scripted episodes."""
    rng = random.Random(0)
    world = fresh_misleading_world(rng)
    drawn = NoisySearch.of(world, rng)
    tools = search(world) if search else drawn
    setup = replace(setup, tools=lambda: search_tools(tools))
    questions = draw_questions(world.world, count, 0)
    played = play(setup, questions, lambda q: ScriptedSearcher(q, world, setup.codec, drawn, rng, habits))
    return [(question, record) for question, (record, _) in zip(questions, played, strict=True)]


def test_with_only_near_duplicates_it_asks_twice_and_guesses(setup):
    for question, record in episodes(setup, RIGHT, AlwaysNear):
        first = question.lookups[0]
        queries = [call.arguments["query"] for turn in record.turns for call in turn.calls]
        assert queries == [first.entity, f"{first.entity} {WORDING[first.relation].query_words}"]
        assert record.status == "answered"


def test_every_well_formed_episode_fits_the_budget_and_right_ones_answer_from_what_they_found(setup):
    right = 0
    for question, record in episodes(setup, RIGHT, count=48):
        assert record.status == "answered" and len(record.turns) <= budget().max_turns + 1
        text = " ".join(
            d.contents for turn in record.turns for documents in turn.documents for d in documents
        )
        if all(f" {fact.value}." in text for fact in question.lookups):
            right += record.answer == question.gold
    assert right > 10


def test_mixed_habits_sometimes_do_not_search_and_sometimes_stop_early(setup):
    played = episodes(setup, MIXED, count=57)
    assert 0 < sum(record.n_searches == 0 for _, record in played) < 57
    assert any(r.n_searches == 1 and q.kind == "both" and " and " not in r.answer for q, r in played)


def test_rows_depend_on_seed_and_step_alone(setup):
    def ids(seed, step):
        return [row.response_ids for row in scripted_rows(setup, MIXED, seed, step)]

    assert ids("a", 1) == ids("a", 1) != ids("a", 2)
    assert ids("a", 1) != ids("b", 1)
