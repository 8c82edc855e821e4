"""The chat engine: the context told as a conversation, and stop strings put back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.agent import Budget, Episode, ReplayTurn, UnknownTokenError
from rag_r1.inference.character_codec import CHARS_PER_TOKEN, CharacterCodec, character_budget
from rag_r1.inference.client import EngineFailure
from rag_r1.inference.engines.chat import GO_ON, ChatEngine
from rag_r1.inference.engines.stop_strings import close_at_stop
from rag_r1.inference.episode_client import Reply, turn_seed
from rag_r1.protocols import load_protocol
from rag_r1.runs.response_cache import Usage
from rag_r1.tools import search_tools
from tests.fakes.scripted_engine import ANSWER, FOUND, OBSERVED, SEARCH, Searcher

SQ, MQ, R1S = (load_protocol(name) for name in ("rag_r1_sq", "rag_r1_mq", "r1_searcher"))
SAMPLING = {"model": "m", "temperature": 0.7}


class Said:
    """Exchanges that give these replies in turn, and keep the requests."""

    def __init__(self, replies: Sequence[Reply | str]):
        self.replies, self.bodies, self.most, self.usage = list(replies), [], [], Usage()

    async def ask(self, path, body, read, most_tokens):
        assert path == "/chat/completions"
        self.bodies.append(body)
        self.most.append(most_tokens)
        reply = self.replies[len(self.bodies) - 1]
        return Reply(reply, finish="stop") if isinstance(reply, str) else reply


def play(replies, protocol=SQ, codec=None, more=None, past=(), **budget):
    """(record, ledger, requests) of an episode with these replies, after the turns of a past."""
    said, codec = Said(replies), codec or CharacterCodec()
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    engine = ChatEngine(said, codec, protocol, messages, SAMPLING, 5, more)
    limits = Budget(**{"max_query_observation_tokens": 4000, "max_response_tokens": 10_000, **budget})
    episode = Episode(protocol, limits, engine, search_tools(Searcher()), codec)
    record = asyncio.run(episode.resume("t", "Q", codec.encode("prompt"), past))
    return record, episode.ledger, said


def test_the_context_is_told_as_a_conversation_and_closing_tags_are_put_back():
    search, answer = SEARCH.removesuffix("</search>"), ANSWER.removesuffix("</answer>")
    record, ledger, said = play([search, answer])
    assert (record.status, record.answer, record.turns[0].queries) == ("answered", "Rome", ["q"])
    assert record.turns[0].documents == [[FOUND]]
    assert said.bodies[0]["messages"] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q"},
    ]
    assert said.bodies[1]["messages"][2:] == [
        {"role": "assistant", "content": SEARCH},
        {"role": "user", "content": OBSERVED},
    ]
    row = ledger.row()
    assert "".join(map(chr, row.response_ids)) == SEARCH + OBSERVED + ANSWER


def test_what_was_said_in_a_past_is_told_as_if_it_had_been_said_now():
    replies = ["<search> q", "I do not know.", "<search> r", "<answer> a"]
    whole, _, said = play(replies)
    for count in range(1, 4):
        turns = [
            ReplayTurn.of(CharacterCodec().encode(turn.text), turn.calls) for turn in whole.turns[:count]
        ]
        record, _, after = play(replies[count:], past=turns)
        assert after.bodies == said.bodies[count:]
        assert [turn.text for turn in record.turns] == [turn.text for turn in whole.turns]


def test_a_request_has_the_sampling_the_limits_and_a_seed_of_its_own_for_each_turn():
    _, _, said = play(
        ["<search> q", "<answer> a"], more={"top_k": 5, "temperature": None}, max_turn_tokens=401
    )
    first, second = said.bodies
    assert first["stop"] == list(SQ.stop) and first["max_tokens"] == 101 == said.most[0]
    assert first["model"] == "m" and first["top_k"] == 5 and "temperature" not in first
    assert first["seed"] != second["seed"] and 0 <= first["seed"] < 1 << 31


def test_null_leaves_out_a_key_that_an_endpoint_refuses():
    more = {"max_tokens": None, "max_completion_tokens": 9, "seed": None}
    _, _, said = play(["<answer> a"], more=more)
    assert "max_tokens" not in said.bodies[0] and "seed" not in said.bodies[0]
    assert said.bodies[0]["max_completion_tokens"] == 9 == said.most[0]


def test_an_invalid_turn_is_answered_with_the_protocols_hint():
    record, _, said = play(["I do not know.", "<answer> a"])
    assert [turn.action for turn in record.turns] == ["invalid", "answer"]
    assert said.bodies[1]["messages"][-1] == {"role": "user", "content": SQ.invalid_hint}


def test_after_a_turn_without_an_observation_the_user_says_go_on(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        "extends: rag_r1_sq\nname: own\nblocks:\n"
        '  plan: {tags: ["<plan>", "</plan>"], role: plan, stop: true}\n'
        '  sum: {tags: ["<sum>", "</sum>"], role: summary}\n'
    )
    _, _, said = play(["<plan> p", "<search> q", "<sum> s", "<answer> a"], load_protocol(str(own)))
    roles = [[message["role"] for message in body["messages"]] for body in said.bodies]
    start = ["system", "user"]
    assert roles == [
        start,
        [*start, "assistant", "user"],
        [*start, *["assistant", "user"] * 2],
        [*start, "assistant", "user"],
    ]
    assert said.bodies[1]["messages"][-2:] == [
        {"role": "assistant", "content": "<plan> p</plan>"},
        {"role": "user", "content": GO_ON},
    ]
    # The summary has taken the place of the search; the plan stays.
    assert said.bodies[3]["messages"][-2:] == [
        {"role": "assistant", "content": "<plan> p</plan><sum> s</sum>"},
        {"role": "user", "content": GO_ON},
    ]


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply("<think> t </think> <search> q", finish="stop"), "<think> t </think> <search> q</search>"),
        (Reply("<answer> a", finish="stop"), "<answer> a</answer>"),
        (Reply("<answer> a", finish=None), "<answer> a</answer>"),
        (Reply("<answer> a", finish="length"), "<answer> a"),
        (Reply("<answer> a</answer> and more", finish="stop"), "<answer> a</answer>"),
        (Reply("<search> a </search><answer> b </answer>", finish="length"), "<search> a </search>"),
        (
            Reply("<think> I could <search> or <answer> </think> no", finish="stop"),
            "<think> I could <search> or <answer> </think> no",
        ),
        (Reply("<search> x <answer> y", finish="stop"), "<search> x <answer> y</answer>"),
        (Reply("nothing", finish="stop"), "nothing"),
        (Reply("<answer> a", finish="stop", knows_stop=True), "<answer> a"),
        (Reply("<answer> a", finish="stop", knows_stop=True, stopped_at="</answer>"), "<answer> a</answer>"),
        (Reply("<answer> a", finish="stop", knows_stop=True, stopped_at="<|eot|>"), "<answer> a"),
    ],
)
def test_a_stop_string_is_put_back_only_where_it_was(reply, text):
    assert close_at_stop(reply, SQ, SQ.stop) == text


@settings(max_examples=40)
@given(
    protocol=st.sampled_from([SQ, MQ, R1S]),
    before=st.text(st.sampled_from("ab <\n"), max_size=6),
    inside=st.text(st.sampled_from("ab </\n"), max_size=6),
    block=st.integers(0, 1),
)
def test_what_an_endpoint_leaves_out_is_what_is_put_back(protocol, before, inside, block):
    acting = protocol.acting[block]
    whole = f"{before}{acting.open}{inside}{acting.close}"
    assert (
        close_at_stop(Reply(whole.removesuffix(acting.close), finish="stop"), protocol, protocol.stop)
        == whole
    )
    assert close_at_stop(Reply(whole + before, finish="stop"), protocol, protocol.stop) == whole


def test_an_opening_that_the_prompt_has_already_is_not_repeated():
    record, _, _ = play(["<think> t </think> <answer> a", "x"], R1S)
    assert record.turns[0].text == " t </think> <answer> a</answer>"
    record, _, _ = play(["t </think> <answer> a"], R1S)
    assert record.turns[0].text == "t </think> <answer> a</answer>"


def test_an_answer_longer_than_the_turn_is_cut():
    record, _, _ = play([Reply("x" * 50, finish="length"), "<answer> a"], max_turn_tokens=20)
    assert record.turns[0].text == "x" * 20 and record.turns[0].status == "truncated"


def test_an_answer_that_a_filter_withheld_is_a_failure():
    engine = ChatEngine(Said([Reply("", finish="content_filter")]), CharacterCodec(), SQ, [], SAMPLING, 0)
    with pytest.raises(EngineFailure):
        asyncio.run(engine.generate([1], 10, SQ.stop))


async def test_a_failed_request_leaves_the_conversation_as_it_was():
    class Failing(Said):
        async def ask(self, path, body, read, most_tokens):
            reply = await super().ask(path, body, read, most_tokens)
            if reply.text == "fail":
                raise EngineFailure("away")
            return reply

    said = Failing(["<search> q", "fail", "<answer> a"])
    engine = ChatEngine(said, CharacterCodec(), SQ, [{"role": "user", "content": "Q"}], SAMPLING, 0)
    context = [1, 2]
    context += (await engine.generate(context, 100, SQ.stop)).token_ids
    context += CharacterCodec().encode("found")
    with pytest.raises(EngineFailure):
        await engine.generate(context, 100, SQ.stop)
    await engine.generate(context, 100, SQ.stop)
    assert said.bodies[1] == said.bodies[2]


TURNS = st.lists(
    st.tuples(st.sampled_from(["<search> a", "<think> b", "c"]), st.text(max_size=5)), max_size=4
)


@settings(max_examples=30)
@given(TURNS)
def test_the_conversation_is_the_context_turn_by_turn(turns):
    """Each assistant message is what was generated, each user message what was added, and nothing is lost."""

    async def main():
        said, codec = Said([reply for reply, _ in turns]), CharacterCodec()
        engine = ChatEngine(said, codec, SQ, [{"role": "user", "content": "Q"}], SAMPLING, 0)
        context = codec.encode("prompt")
        expected: list[tuple[str, str]] = []
        for _, added in turns:
            out = await engine.generate(context, 100, SQ.stop)
            assert [(m["role"], m["content"]) for m in said.bodies[-1]["messages"][1:]] == expected
            context = [*context, *out.token_ids, *codec.encode(added)]
            text = added if added.strip() else GO_ON
            expected += [("assistant", codec.decode(out.token_ids)), ("user", text)]

    asyncio.run(main())


def test_limits_in_tokens_become_limits_in_characters():
    budget = Budget(max_turns=3, max_turn_tokens=10, max_prompt_tokens=7, max_context_tokens=None)
    wide = character_budget(budget)
    assert (wide.max_turns, wide.max_turn_tokens, wide.max_prompt_tokens) == (
        3,
        10 * CHARS_PER_TOKEN,
        7 * CHARS_PER_TOKEN,
    )
    assert wide.max_context_tokens is None and wide.max_response_tokens == 4096 * CHARS_PER_TOKEN


@given(st.text())
def test_characters_come_back(text):
    codec = CharacterCodec()
    assert codec.decode(codec.encode(text)) == text


def test_numbers_that_are_no_characters_are_unknown_tokens():
    for number in (0x110000, 1 << 70, -1):
        with pytest.raises(UnknownTokenError):
            CharacterCodec().decode([number])


def test_seeds_of_turns_differ():
    assert len({turn_seed(seed, turn) for seed in range(20) for turn in range(20)}) == 400
