"""Probes: each changes the search of an episode as it says, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import Budget
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.data.evidence import GoldEvidence, title_key, title_of
from rag_r1.options.tool_limits import ToolLimits
from rag_r1.probes.passages import Passages
from rag_r1.probes.probes import NEED_GOLD, PROBES, ProbeAgent, applies, enough_random, probe_setup, topk_of
from rag_r1.protocols import SEARCH as SEARCH_TOOL
from rag_r1.protocols import Document, Failure, Refusal, load_protocol
from rag_r1.tools import search_tools
from rag_r1.tools.function_tool import FunctionTool, schema_of
from tests.fakes.scripted_engine import ANSWER, SEARCH, Characters, Engine, untimed

TOPK = 2
GOLD = (Document("1", '"Rome"\nRome is a city.'), Document("2", '"Tiber"\nA river.'))
OTHERS = tuple(Document(str(i), f'"Page {i}"\ntext {i}') for i in range(3, 30))


class Corpus:
    """Ranks the gold passages first."""

    async def search(self, queries):
        others = {"fails": Failure("no", "retriever"), "refused": Refusal("too long")}
        return [others.get(query, [*GOLD, *OTHERS]) for query in queries]


SETUP = AgentSetup(
    protocol=load_protocol("rag_r1_sq"),
    codec=Characters(),
    budget=Budget(max_turns=3),
    tools=partial(search_tools, Corpus()),
    chat=lambda messages: [1],
)
EVIDENCE = GoldEvidence.of({"supporting_ids": ["1"], "supporting_titles": ["TIBER"]}, GOLD)


def play(probe, lines=(SEARCH, ANSWER), question_id="q1", evidence=EVIDENCE, pool=OTHERS):
    async def run():
        setup = probe_setup(SETUP, probe, question_id, TOPK, evidence, pool)
        return await setup.episode(Engine(list(lines))).run(question_id, "Where?", [1, 2])

    return asyncio.run(run())


def shown_ids(record):
    return [document.id for turn in record.turns for matches in turn.documents for document in matches]


def test_the_real_run_is_the_run_itself():
    assert probe_setup(SETUP, "real", "q1", TOPK) is SETUP


@pytest.mark.parametrize("probe, documents", [("empty", []), ("gold", ["1", "2"]), ("withheld", ["3", "4"])])
def test_a_search_finds_what_the_probe_says_and_the_episode_goes_on(probe, documents):
    record = play(probe)
    assert shown_ids(record) == documents
    assert (record.status, record.answer, len(record.turns)) == ("answered", "Rome", 2)


def test_gold_passages_stand_in_the_order_of_the_query_with_the_searchs_own_behind_them():
    setup = probe_setup(SETUP, "gold", "q1", 3, EVIDENCE)

    results = asyncio.run(search_with(setup.tools, "the TIBER", "a city", "?"))
    ids = [[item.id for item in result] for result in results]
    assert ids == [["2", "1", "3"], ["1", "2", "3"], ["1", "2", "3"]]


class Partial:
    """Finds a gold passage for a query that names it; the others stand behind what is shown."""

    async def search(self, queries):
        by_query = [[d for d in GOLD if title_of(d).lower() in query.lower()] for query in queries]
        return [[OTHERS[0], *gold, *OTHERS[1:5], *(d for d in GOLD if d not in gold)] for gold in by_query]


class Titled:
    """Finds first what the query names."""

    async def search(self, queries):
        return [[*(d for d in GOLD if title_of(d) in query), *OTHERS] for query in queries]


def gold_shown(*queries, topk=3):
    setup = probe_setup(replace(SETUP, tools=partial(search_tools, Partial())), "gold", "q1", topk, EVIDENCE)
    return [[item.id for item in result] for result in asyncio.run(search_with(setup.tools, *queries))]


def test_where_the_results_of_a_call_have_all_gold_passages_only_their_rank_changes():
    assert gold_shown("Rome", "the Tiber") == [["1", "3", "4"], ["2", "3", "4"]]
    assert gold_shown("Rome and the Tiber", "another") == [["1", "2", "3"], ["3", "4", "5"]]


def test_more_gold_passages_than_topk_are_repeated_no_more_than_others():
    agent = ProbeAgent(SETUP, replace(SETUP, tools=partial(search_tools, Titled())), 1)
    tools = agent.under("gold", "q1", EVIDENCE).tools
    assert [[d.id for d in item] for item in asyncio.run(search_with(tools, "Rome", "Tiber"))] == [
        ["1"],
        ["2"],
    ]
    assert [[d.id for d in item] for item in asyncio.run(search_with(tools, "another"))] == [["1", "2"]]


def test_a_gold_passage_that_no_result_of_the_call_shows_is_added_to_each():
    assert gold_shown("Rome", "another") == [["1", "2", "3"], ["2", "3", "4"]]
    assert gold_shown("another") == [["1", "2", "3"]]


def test_with_closed_book_the_policy_answers_at_once_or_not_at_all():
    assert play("closed_book", [ANSWER]).status == "answered"
    searched = play("closed_book")
    assert (searched.status, searched.answer, shown_ids(searched)) == ("turn_limit", None, [])


def test_random_passages_differ_between_questions_and_queries_and_never_between_runs():
    drawn = shown_ids(play("random"))
    assert len(set(drawn)) == TOPK and set(drawn) <= {document.id for document in OTHERS}
    assert untimed(play("random")) == untimed(play("random"))
    other_question = shown_ids(play("random", question_id="q2"))
    other_query = shown_ids(play("random", [SEARCH.replace(" q ", " another "), ANSWER]))
    assert len({tuple(drawn), tuple(other_question), tuple(other_query)}) == 3


def test_a_search_that_fails_still_fails_where_passages_are_withheld():
    record = play("withheld", [SEARCH.replace(" q ", " fails "), ANSWER])
    assert record.n_tool_failures == 1 and shown_ids(record) == []


@pytest.mark.parametrize("probe", ["gold", "withheld"])
def test_a_search_that_is_refused_is_the_policys_mistake_in_a_probe_too(probe):
    record = play(probe, [SEARCH.replace(" q ", " refused "), ANSWER])
    assert record.turns[0].documents[0][0].contents == "too long" and record.n_tool_failures == 0


@pytest.mark.parametrize("probe", NEED_GOLD)
def test_a_probe_without_the_gold_passages_that_it_needs_is_refused(probe):
    with pytest.raises(ValueError, match="q1.*supporting ids"):
        probe_setup(SETUP, probe, "q1", TOPK, GoldEvidence())


def test_gold_needs_the_text_and_random_a_pool():
    with pytest.raises(ValueError, match="text of the gold passages"):
        probe_setup(SETUP, "gold", "q1", TOPK, GoldEvidence(ids=frozenset("1")))
    with pytest.raises(ValueError, match="at least 2 passages, not 1"):
        probe_setup(SETUP, "random", "q1", TOPK, None, OTHERS[:1])


@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_changes_neither_prompt_nor_codec_nor_failure_policy(probe):
    setup = probe_setup(SETUP, probe, "q1", TOPK, EVIDENCE, OTHERS)
    for part in ("protocol", "codec", "chat", "failures", "own_prompt", "start"):
        assert getattr(setup, part) is getattr(SETUP, part)
    if probe != "closed_book":
        assert setup.budget is SETUP.budget


class Deeper:
    """Ranks other passages behind the gold ones."""

    async def search(self, queries):
        return [[*GOLD, *reversed(OTHERS)] for _ in queries]


async def search_with(tools, *queries):
    return await tools()[SEARCH_TOOL].call([{"query": query} for query in queries])


def test_the_probes_of_gold_passages_use_the_deeper_search_and_the_real_run_its_own():
    agent = ProbeAgent(SETUP, replace(SETUP, tools=partial(search_tools, Deeper())), 3)
    assert agent.under("real", "q1", EVIDENCE) is SETUP
    for probe, documents in (("gold", [*GOLD, OTHERS[-1]]), ("withheld", [*OTHERS[:-4:-1]])):
        assert asyncio.run(search_with(agent.under(probe, "q1", EVIDENCE).tools, "city")) == [documents]


class OwnSearch(FunctionTool):
    """A search tool of the user's, with an argument and limits of its own."""

    index = "own v1"

    def __init__(self):
        async def search(phrase: str) -> list[Document]:
            return [*OTHERS[:4], *GOLD]

        super().__init__(
            "search", "", schema_of({"phrase": {"type": "string"}}), search, ToolLimits(max_calls=1)
        )


@pytest.mark.parametrize(
    ("probe", "documents", "index"),
    [
        ("empty", [], ""),
        ("random", None, ""),
        ("gold", ["1", "2"], "own v1"),
        ("withheld", ["3", "4"], "own v1"),
    ],
)
def test_a_probe_keeps_the_limits_of_the_search_and_records_its_index(probe, documents, index):
    setup = replace(SETUP, tools=lambda: {SEARCH_TOOL: OwnSearch()})

    async def run():
        changed = probe_setup(setup, probe, "q1", TOPK, EVIDENCE, OTHERS)
        return await changed.episode(Engine([SEARCH, SEARCH, ANSWER])).run("q1", "Where?", [1, 2])

    first, second = (call for turn in asyncio.run(run()).turns for call in turn.calls)
    assert (first.status, first.index, second.status) == ("ok", index, "refused")
    if documents is not None:
        assert [document.id for document in first.documents] == documents


def test_random_passages_are_none_of_the_questions_own():
    agent = ProbeAgent(SETUP, SETUP, TOPK, Passages(random=[*GOLD, *OTHERS[:3]]))

    for evidence, pool in ((EVIDENCE, OTHERS[:3]), (GoldEvidence(), [*GOLD, *OTHERS[:3]])):
        results = asyncio.run(search_with(agent.under("random", "q1", evidence).tools, *map(str, range(40))))
        assert {document for result in results for document in result} == set(pool)


def test_gold_shows_a_passage_of_each_page_even_beyond_topk():
    agent = ProbeAgent(SETUP, SETUP, 1)
    assert asyncio.run(search_with(agent.under("gold", "q1", EVIDENCE).tools, "?")) == [list(GOLD)]


def test_a_question_is_probed_if_what_the_probe_needs_of_it_is_known():
    named, nothing = GoldEvidence(titles=frozenset({"rome"})), GoldEvidence()
    usable = {name: [applies(name, item) for item in (EVIDENCE, named, nothing)] for name in PROBES}
    assert usable.pop("gold") == [True, False, False] and usable.pop("withheld") == [True, True, False]
    assert set(map(tuple, usable.values())) == {(True, True, True)}


def test_random_needs_more_passages_than_two_searches_show_beside_those_of_each_question():
    passages = Passages(random=[*GOLD, *OTHERS[:4]])
    assert enough_random(passages, [], TOPK) and enough_random(passages, [GoldEvidence()], TOPK)
    assert not enough_random(passages, [GoldEvidence(), EVIDENCE], TOPK)
    assert not enough_random(Passages(), [], TOPK)


@pytest.mark.parametrize(
    ("retriever", "topk"), [({}, 3), ({"topk": 5}, 5), ({"topk": None}, 0), ({"topk": "5"}, 0)]
)
def test_topk_is_0_if_a_search_does_not_say_it_as_a_number(retriever, topk):
    assert topk_of(retriever) == topk


def test_a_passage_of_a_gold_page_is_gold_under_any_spelling_of_its_title():
    evidence = GoldEvidence.of({"supporting_titles": ["Caf\u00e9_Central (Wien)"]})
    assert evidence.holds(Document("x", '"cafe\u0301  central (wien)"\ntext'))
    assert not evidence.holds(Document("x", '"Café Central"\ntext')) and not GoldEvidence()
    assert not GoldEvidence.of({"supporting_ids": [None], "supporting_titles": [float("nan"), None, " "]})


@given(st.text(), st.text())
def test_a_title_is_the_first_line_without_its_outer_quotes(title, text):
    line = title.replace("\n", " ")
    if line.strip() == line:
        assert title_of(Document("1", f'"{line}"\n{text}')) == Document("1", line).contents
    assert title_key(title_key(title)) == title_key(title)
