"""The turn loop by example: what ends an episode, what the policy is shown, and that nobody waits."""

import asyncio
from random import Random

import pytest

from rag_r1.protocols import Document, Failure, load_protocol
from tests.fakes.scripted_engine import (
    ANSWER,
    FOUND,
    OBSERVED,
    SEARCH,
    Engine,
    Searcher,
    make_episode,
    untimed,
)

SQ, MQ = load_protocol("rag_r1_sq"), load_protocol("rag_r1_mq")


async def play(lines, protocol=SQ, searcher=None, aborted=False, **budget):
    """(record, ledger, what the engine saw) of an episode with the prompt "P"."""
    engine = Engine(lines, aborted=aborted)
    episode = make_episode(protocol, engine, searcher, **budget)
    record = await episode.run("hotpot-1", "Which city?", [ord("P")])
    return record, episode.ledger, engine.contexts


async def test_search_observe_answer():
    record, ledger, contexts = await play([SEARCH, ANSWER])
    assert (record.status, record.answer) == ("answered", "Rome")
    assert contexts == ["P", f"P{SEARCH}{OBSERVED}"]
    row = ledger.row()
    assert "".join(map(chr, row.response_ids)) == SEARCH + OBSERVED + ANSWER
    assert row.response_mask == [1] * len(SEARCH) + [0] * len(OBSERVED) + [1] * len(ANSWER)
    assert row.response_logprobs == [-1.0] * len(SEARCH) + [0.0] * len(OBSERVED) + [-1.0] * len(ANSWER)
    first, last = record.turns
    assert (first.action, first.queries, first.documents, first.status) == ("search", ["q"], [[FOUND]], "ok")
    assert (last.action, last.queries, last.documents, last.observed_tokens) == ("answer", [], [], 0)
    assert (record.prompt_tokens, record.generated_tokens) == (1, len(SEARCH) + len(ANSWER))
    assert (record.id, record.question, record.protocol) == ("hotpot-1", "Which city?", "rag_r1_sq")


async def test_all_queries_of_a_turn_go_to_the_searcher_at_once():
    searcher = Searcher()
    record, _, _ = await play(["<search> a, b, c, d </search>", ANSWER], MQ, searcher)
    assert searcher.calls == [["a", "b", "c"]]
    assert record.n_searches == 3


async def test_a_query_that_was_asked_before_is_counted_in_its_turn():
    turns = ["<search> Who? , b </search>", "<search> who, c </search>", "<search> c </search>", ANSWER]
    record, _, _ = await play(turns, MQ)
    assert [turn.repeated_queries for turn in record.turns] == [0, 1, 1, 0]
    assert record.n_repeated_queries == record.to_dict()["turns"][1]["repeated_queries"] * 2 == 2
    record, _, _ = await play(["<search> who, who? </search>", ANSWER], MQ)
    assert record.turns[0].repeated_queries == 1, "the same words twice in one turn"


async def test_an_empty_answer_is_an_answer():
    record, _, _ = await play(["<answer></answer>"])
    assert (record.status, record.answer) == ("answered", "")


async def test_an_invalid_turn_gets_the_hint_and_the_episode_goes_on():
    record, _, contexts = await play(["I think so.", ANSWER])
    assert record.status == "answered"
    assert contexts[1] == f"PI think so.{SQ.invalid_hint}"
    assert (record.turns[0].action, record.turns[0].status) == ("invalid", "invalid")


async def test_a_turn_that_is_cut_by_its_budget_says_so():
    record, _, contexts = await play([SEARCH, ANSWER], max_turn_tokens=len(ANSWER))
    assert [turn.status for turn in record.turns] == ["truncated", "ok"]
    # The rest of a block in the next turn does not complete it.
    record, _, _ = await play(["<answer> Ro", "me </answer>", ANSWER], max_turn_tokens=len(ANSWER))
    assert [turn.action for turn in record.turns] == ["invalid", "invalid", "answer"]


@pytest.mark.parametrize(
    ("max_turns", "final_turn", "turns", "searches"),
    [(4, True, 5, 4), (4, False, 4, 3), (1, True, 2, 1), (1, False, 1, 0), (0, True, 1, 0)],
)
async def test_the_last_turns_search_is_not_carried_out(max_turns, final_turn, turns, searches):
    searcher = Searcher()
    record, _, _ = await play([SEARCH], searcher=searcher, max_turns=max_turns, final_turn=final_turn)
    assert (record.status, record.answer) == ("turn_limit", None)
    assert (len(record.turns), len(searcher.calls), record.n_searches) == (turns, searches, searches)
    assert (record.turns[-1].action, record.turns[-1].observed_tokens) == ("search", 0)


async def test_a_failed_search_is_shown_and_the_episode_goes_on():
    record, _, contexts = await play(
        [SEARCH, ANSWER], searcher=Searcher(Failure("the search engine is away"))
    )
    assert (record.status, record.answer) == ("answered", "Rome")
    assert (record.turns[0].status, record.turns[0].documents) == ("tool_failure", [[]])
    assert contexts[1].endswith("\n<information>\nthe search engine is away\n</information>\n")


async def test_an_episode_without_an_answer_after_a_failed_search_is_a_tool_failure():
    record, _, _ = await play([SEARCH], searcher=Searcher(Failure("away")))
    assert (record.status, record.n_tool_failures) == ("tool_failure", 4)


@pytest.mark.parametrize("line", ["", ANSWER, SEARCH])
async def test_an_aborted_generation_ends_the_episode(line):
    searcher = Searcher()
    record, ledger, _ = await play([line], searcher=searcher, aborted=True)
    assert (record.status, record.answer, searcher.calls) == ("engine_failure", None, [])
    assert ledger.row().response_mask == [1] * len(line)


async def test_an_observation_that_cannot_fit_ends_the_episode_before_it_is_seen():
    room = len(SEARCH) + len("\n<information>\n\n</information>\n") + 16
    record, ledger, contexts = await play([SEARCH, ANSWER], max_response_tokens=room - 1)
    assert (record.status, len(contexts), len(ledger.row().response_ids)) == ("token_limit", 1, len(SEARCH))
    # One token more, and the bare tags fit.
    record, ledger, contexts = await play([SEARCH, ANSWER], max_response_tokens=room)
    assert contexts[1].endswith("\n<information>\n\n</information>\n")
    assert record.turns[0].documents == [[]]


async def test_without_any_room_for_an_observation_nothing_is_searched():
    searcher = Searcher()
    record, _, _ = await play([SEARCH], searcher=searcher, max_response_tokens=len(SEARCH) + 16)
    assert (record.status, searcher.calls, record.n_searches) == ("token_limit", [], 0)


async def test_a_hint_that_does_not_fit_ends_the_episode():
    record, _, contexts = await play(["hm", ANSWER], max_response_tokens=100)
    assert (record.status, len(contexts)) == ("token_limit", 1)


async def test_documents_are_cut_to_the_query_budget_and_the_closing_tag_stays():
    many = Searcher([Document(str(i), f"Title {i}\n" + "word " * 20) for i in range(5)])
    record, _, contexts = await play(
        ["<search> a, b </search>", ANSWER], MQ, many, max_query_observation_tokens=300
    )
    assert [len(documents) for documents in record.turns[0].documents] == [3, 3]
    assert contexts[1].endswith('word"\n  ]\n}\n</information>\n')


def random_scene(seed):
    """The lines and the results of one of many different episodes, and pauses of different lengths."""
    random = Random(seed)
    lines = random.choices([SEARCH, "<search> a, b </search>", "hm", ANSWER], weights=[4, 3, 2, 1], k=5)
    result = random.choice([[FOUND], [], [FOUND, FOUND], Failure("away")])

    async def pause():
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)

    return lines, result, pause


async def test_many_trajectories_at_once_give_the_records_of_one_after_another():
    async def episode(seed):
        lines, result, pause = random_scene(seed)
        loop = make_episode(MQ, Engine(lines, pause), Searcher(result, pause))
        record = await loop.run(str(seed), "q", [seed])
        return untimed(record), loop.ledger.row()

    together = await asyncio.gather(*map(episode, range(64)))
    assert together == [await episode(seed) for seed in range(64)]
    assert len({record["status"] for record, _ in together}) > 2


async def test_no_trajectory_waits_for_anothers_search():
    answered = asyncio.Event()
    stuck = make_episode(SQ, [SEARCH, ANSWER], Searcher(pause=answered.wait))
    waiting = asyncio.create_task(stuck.run("stuck", "q", [1]))
    others = [make_episode(SQ, [SEARCH, ANSWER]) for _ in range(20)]
    records = await asyncio.gather(*(other.run("free", "q", [1]) for other in others))
    assert {record.status for record in records} == {"answered"}
    assert not waiting.done()
    answered.set()
    assert (await waiting).status == "answered"
