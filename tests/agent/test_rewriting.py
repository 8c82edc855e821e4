"""A protocol that rewrites its context: rows are what the engine saw, each token is trained on once."""

import asyncio

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import load_protocol
from tests.fakes.scripted_engine import ANSWER, SEARCH, Engine, Searcher, make_episode

SUMMARY = "<think> enough </think> <summary> Rome is a city </summary>"


@pytest.fixture(scope="module")
def protocol(tmp_path_factory):
    path = tmp_path_factory.mktemp("protocol") / "summary.yaml"
    blocks = {"summary": {"tags": ["<summary>", "</summary>"], "role": "summary"}}
    path.write_text(yaml.safe_dump({"extends": "rag_r1_sq", "name": "summing", "blocks": blocks}))
    return load_protocol(str(path))


class OwnWords(Engine):
    """It is not stopped at a search."""

    async def generate(self, context, max_tokens, stop):
        assert "</search>" not in stop
        return await super().generate(context, max_tokens, ["</search>", *stop])


def play(protocol, lines, **budget):
    engine = Engine(lines)
    episode = make_episode(protocol, engine, **{"max_turns": 8, **budget})
    return asyncio.run(episode.run("id", "q", [ord("P")])), episode, engine


def text(ids):
    return "".join(map(chr, ids))


def test_a_summary_leaves_the_prompt_and_the_turn_that_wrote_it(protocol):
    record, episode, engine = play(protocol, [SEARCH, SUMMARY, SEARCH, ANSWER])
    first, second = episode.ledger.rows()
    assert text(first.prompt_ids) == "P" and text(second.prompt_ids) == f"P{SUMMARY}"
    assert engine.contexts[2] == f"P{SUMMARY}" and len(engine.contexts[2]) < len(engine.contexts[1])
    assert text(first.response_ids).endswith(SUMMARY) and text(second.response_ids).endswith(ANSWER)
    assert [turn.row for turn in record.turns] == [0, 0, 1, 1]
    assert (record.status, record.answer) == ("answered", "Rome")
    assert record.generated_tokens == sum(first.response_mask) + sum(second.response_mask)


def test_several_summaries_keep_the_last(protocol):
    _, episode, engine = play(protocol, [SUMMARY, SUMMARY, ANSWER])
    assert engine.contexts == ["P", f"P{SUMMARY}", f"P{SUMMARY}"] and len(episode.ledger.rows()) == 3


def test_a_row_has_its_capacity_and_the_episode_its_budget(protocol):
    lines = [SUMMARY] * 20
    fits = 2 * len(SUMMARY)
    record, episode, _ = play(protocol, lines, max_response_tokens=fits, max_turns=19)
    assert len(episode.ledger.rows()) == 20, "each row is short"
    record, episode, _ = play(
        protocol, lines, max_response_tokens=fits, max_turns=19, max_episode_tokens=3 * fits
    )
    assert record.status == "token_limit" and record.generated_tokens == 3 * fits


def test_a_context_that_leaves_no_room_for_a_turn_ends_the_episode(protocol):
    limit = 1 + len(SUMMARY) + 5
    record, episode, engine = play(protocol, [SUMMARY, ANSWER], max_context_tokens=limit)
    assert (record.status, len(engine.contexts)) == ("token_limit", 1)
    assert len(episode.ledger.rows()) == 1


@given(lines=st.lists(st.sampled_from([SEARCH, SUMMARY, "hm"]), max_size=6), room=st.integers(150, 2000))
def test_every_row_is_what_the_engine_saw_and_no_token_is_trained_on_twice(protocol, lines, room):
    record, episode, engine = play(
        protocol, [*lines, ANSWER], max_response_tokens=room, max_context_tokens=room
    )
    rows = episode.ledger.rows()
    generated = [
        text([i for i, bit in zip(r.response_ids, r.response_mask, strict=True) if bit]) for r in rows
    ]
    assert "".join(generated) == record.generated_text
    whole = [text(row.prompt_ids + row.response_ids) for row in rows]
    assert all(
        any(row.startswith(context) for row in whole) for context in engine.contexts[: len(record.turns)]
    )
    assert all(len(row.prompt_ids) + len(row.response_ids) <= room for row in rows)
    for turn, context in zip(record.turns, engine.contexts, strict=True):
        assert whole[turn.row].startswith(context + turn.text)


def test_observations_of_the_policy_itself_are_trained_on_and_counted():
    step = "<search> [Wiki_RAG]: q </search> <observation> in Rome </observation>"
    engine, searcher = OwnWords([f"{step} {step} {ANSWER}"]), Searcher()
    episode = make_episode(load_protocol("agentic_rag_ssrl"), engine, searcher)
    record = asyncio.run(episode.run("id", "q", [ord("P")]))
    assert (record.answer, record.turns[0].simulated, record.n_searches, searcher.calls) == ("Rome", 2, 0, [])
    assert all(episode.ledger.row().response_mask) and record.observed_tokens == 0
