"""The memory stack: what a backtrack and a summary take out of the context, and what stays.

The expected contexts come from a second account of the rules, which knows texts only.
"""

import asyncio

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import load_protocol
from tests.fakes.scripted_engine import ANSWER, OBSERVED, SEARCH, Engine, make_episode

PLAN = "<plan> first the mayor </plan>"
THOUGHT = "<thought> hm </thought>"
BACKTRACK = "<backtrack> that led nowhere </backtrack>"
SUMMARY = "<summary> Rome is a city </summary>"
ROLES = {SEARCH: "call", PLAN: "plan", THOUGHT: "think", BACKTRACK: "backtrack", SUMMARY: "summary"}


@pytest.fixture(scope="module")
def dialect(tmp_path_factory):
    """Loads the protocol with these keys of the two blocks."""
    folder = tmp_path_factory.mktemp("protocols")

    def load(pops=None, span=None):
        blocks = {
            "plan": {"tags": ["<plan>", "</plan>"], "role": "plan", "stop": True},
            "thought": {"tags": ["<thought>", "</thought>"], "role": "think", "stop": True},
            "backtrack": {"tags": ["<backtrack>", "</backtrack>"], "role": "backtrack", "pops": pops},
            "summary": {"tags": ["<summary>", "</summary>"], "role": "summary", "span": span},
        }
        path = folder / "memory.yaml"
        path.write_text(yaml.safe_dump({"extends": "rag_r1_sq", "name": "memory", "blocks": blocks}))
        return load_protocol(str(path))

    return load


def play(protocol, lines, **budget):
    engine = Engine([*lines, ANSWER])
    episode = make_episode(protocol, engine, **{"max_turns": 12, **budget})
    return asyncio.run(episode.run("id", "q", [ord("P")])), episode, engine


def expected_contexts(protocol, lines, pops, span):
    """What the engine is given at each turn, by the rules alone."""
    stack, contexts = [], ["P"]
    for line in lines:
        role = ROLES.get(line, "invalid")
        remove = ()
        if role == "backtrack":
            remove = pops
        elif role == "summary":
            remove = {*ROLES.values(), "invalid"} if span == "everything" else {"call"}
        results = [i for i, (other, _) in enumerate(stack) if other in remove and other != "plan"]
        if results:
            first = 0 if role == "summary" and span == "everything" else results[-1]
            stack = [item for i, item in enumerate(stack) if i < first or item[0] == "plan"]
        added = {"call": OBSERVED, "invalid": protocol.invalid_hint}.get(role, "")
        stack.append((role, line + added))
        contexts.append("P" + "".join(text for _, text in stack))
    return contexts


@pytest.mark.parametrize(
    ("lines", "context", "removed"),
    [
        ([THOUGHT, SEARCH, BACKTRACK], THOUGHT + BACKTRACK, [1]),
        ([SEARCH, THOUGHT, BACKTRACK], SEARCH + OBSERVED + BACKTRACK, [1]),
        ([SEARCH, BACKTRACK, BACKTRACK], BACKTRACK, [1]),
        ([THOUGHT, SEARCH, PLAN, BACKTRACK], THOUGHT + PLAN + BACKTRACK, [1]),
        ([BACKTRACK], BACKTRACK, []),
        ([PLAN, BACKTRACK], PLAN + BACKTRACK, []),
        ([PLAN, THOUGHT, SEARCH, SUMMARY], PLAN + SUMMARY, [1, 2]),
    ],
    ids=[
        "an observation with its call",
        "a thought",
        "a backtrack",
        "under a plan",
        "nothing",
        "no plan",
        "all",
    ],
)
def test_what_is_taken_out_and_what_stays(dialect, lines, context, removed):
    record, _, engine = play(dialect(), lines)
    assert engine.contexts[-1] == "P" + context
    assert record.turns[len(lines) - 1].removed == removed
    assert (record.status, record.answer) == ("answered", "Rome")


def test_the_engines_input_gets_shorter_and_each_row_is_what_it_saw(dialect):
    record, episode, engine = play(dialect(), [SEARCH, SEARCH, BACKTRACK])
    assert len(engine.contexts[3]) < len(engine.contexts[2])
    first, second = episode.ledger.rows()
    whole = ["".join(map(chr, row.prompt_ids + row.response_ids)) for row in (first, second)]
    assert whole == ["P" + 2 * (SEARCH + OBSERVED) + BACKTRACK, engine.contexts[3] + ANSWER]
    assert sum(second.response_mask) == len(ANSWER), "the reflection is trained on in the row that wrote it"
    assert [turn.row for turn in record.turns] == [0, 0, 0, 1]


def test_a_backtrack_can_take_back_the_last_search_and_all_that_followed(dialect):
    lines = [THOUGHT, SEARCH, THOUGHT, PLAN, THOUGHT, BACKTRACK]
    record, _, engine = play(dialect(pops=["call"]), lines)
    assert engine.contexts[-1] == "P" + THOUGHT + PLAN + BACKTRACK
    assert record.turns[5].removed == [1, 2, 4]


def test_a_summary_can_replace_what_came_since_the_last_search(dialect):
    record, _, engine = play(dialect(span="last_call"), [SEARCH, SEARCH, THOUGHT, SUMMARY])
    assert engine.contexts[-1] == "P" + SEARCH + OBSERVED + SUMMARY
    assert record.turns[3].removed == [1, 2]


@pytest.mark.parametrize("pops", [None, ["call"], ["call", "think"], ["backtrack"]])
@pytest.mark.parametrize("span", ["everything", "last_call"])
@given(lines=st.lists(st.sampled_from([*ROLES, "hm"]), max_size=8))
def test_the_context_is_that_of_the_rules_and_each_token_is_trained_on_once(dialect, pops, span, lines):
    protocol = dialect(pops, span)
    record, episode, engine = play(protocol, lines)
    allowed = pops or ["call", "think", "summary", "backtrack", "invalid"]
    assert engine.contexts == expected_contexts(protocol, lines, allowed, span)
    rows = episode.ledger.rows()
    generated = [i for row in rows for i, bit in zip(row.response_ids, row.response_mask, strict=True) if bit]
    assert "".join(map(chr, generated)) == record.generated_text
    for turn, context in zip(record.turns, engine.contexts, strict=True):
        row = rows[turn.row]
        assert "".join(map(chr, row.prompt_ids + row.response_ids)).startswith(context + turn.text)


def test_a_record_with_removed_turns_comes_back_from_json(dialect):
    record, _, _ = play(dialect(), [SEARCH, BACKTRACK])
    assert type(record).from_dict(record.to_dict()) == record


@pytest.mark.parametrize(
    ("lines", "actions"),
    [
        ([], ["think", "think", "answer"]),
        ([SEARCH], ["search", "think", "answer"]),
        ([SEARCH, THOUGHT], ["search", "think", "answer"]),
        (["hm", SEARCH], ["invalid", "search", "think", "answer"]),
        ([SEARCH, BACKTRACK], ["search", "backtrack", "answer"]),
    ],
)
def test_an_answer_before_so_many_actions_is_a_thought(dialect, lines, actions):
    record, episode, engine = play(dialect(), lines, min_actions=2)
    assert [turn.action for turn in record.turns] == actions
    assert (record.status, record.answer) == ("answered", "Rome")
    assert engine.contexts[-1] + ANSWER == "".join(map(chr, episode.ledger.context()))


def test_the_answer_of_the_last_turn_always_counts(dialect):
    record, _, _ = play(dialect(), [], max_turns=1, min_actions=9)
    assert ([turn.action for turn in record.turns], record.answer) == (["think", "answer"], "Rome")


def test_an_early_answer_counts_if_no_other_turn_fits(dialect):
    record, _, _ = play(
        dialect(), [], min_actions=9, max_response_tokens=len(ANSWER) + 15, min_turn_tokens=16
    )
    assert (len(record.turns), record.answer) == (1, "Rome")


def test_an_answer_counts_once_the_state_is_below_the_limit(dialect):
    """Every token has a log-prob of -1, so the state is the number of generated tokens in the context."""
    lines = [SEARCH, SEARCH, ANSWER, BACKTRACK, ANSWER, BACKTRACK]
    most = len(BACKTRACK + ANSWER) + 1
    record, _, _ = play(dialect(pops=["call"]), lines, max_state=float(most))
    actions = ["search", "search", "think", "backtrack", "think", "backtrack", "answer"]
    assert [turn.action for turn in record.turns] == actions
    held = [2 * SEARCH + ANSWER, SEARCH + BACKTRACK + ANSWER, BACKTRACK + ANSWER]
    assert [turn.state for turn in record.turns if turn.state is not None] == [len(text) for text in held]


def test_without_log_probs_a_limit_of_the_state_is_an_error_of_the_record(dialect):
    class Silent(Engine):
        async def generate(self, context, max_tokens, stop):
            out = await super().generate(context, max_tokens, stop)
            return type(out)(out.token_ids)

    episode = make_episode(dialect(), Silent([ANSWER]), max_state=5.0)
    record = asyncio.run(episode.run("id", "q", [ord("P")]))
    assert (record.status, record.answer) == ("error", None)
    assert "rag_r1.agent.max_state" in record.failures[0].detail
