"""Episodes whose turns are messages of a chat template: the ledger holds, token by token, what the template
would write, whether or not the policy ends its turns itself."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_r1.agent import Budget, Generation, TokenizerCodec
from rag_r1.config.agent_setup import AgentSetup, chat_template, for_tokenizer
from rag_r1.protocols import Document, load_protocol
from rag_r1.tools import schemas, search_tools, tool
from tests.agent.chat_templates import USABLE, tokenizer_with

TOOLS = load_protocol("agentic_rag_tools")
BUDGET = Budget(
    max_turns=9, max_turn_tokens=4000, max_query_observation_tokens=9000, max_response_tokens=90_000
)
QUESTION = "Which river flows through Ulm?"
ANSWER = "<think>\nThe Danube.\n</think>\n\n<answer> Danube </answer>"


@tool("Adds two numbers.", {"a": {"type": "number"}, "b": {"type": "number"}})
async def add(a, b):
    return str(a + b)


def call(query=None, name="search", **arguments):
    arguments = arguments or {"query": query}
    return (
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
    )


def turn(thought, *calls):
    return f"<think>\n{thought}\n</think>\n\n" + "\n".join(calls)


class Engine:
    """Says its lines, each without or with the token that ends a turn."""

    def __init__(self, codec, end, lines):
        self.codec, self.lines = codec, list(lines)
        self.end, self.contexts = codec.encode(end), []

    async def generate(self, context, max_tokens, stop):
        text, ends = self.lines[len(self.contexts)]
        self.contexts.append(list(context))
        ids = self.codec.encode(text) + (self.end if ends else [])
        ids = ids[:max_tokens]
        return Generation(ids, [-1.0] * len(ids))


class Searcher:
    """What is found for each query."""

    def __init__(self, found):
        self.found = found

    async def search(self, queries):
        return [self.found.get(query, []) for query in queries]


def setup_with(name, found=None, budget=BUDGET, **tools):
    tokenizer, described = tokenizer_with(name), schemas({})
    return AgentSetup(
        protocol=for_tokenizer(TOOLS, tokenizer, described),
        codec=TokenizerCodec(tokenizer),
        budget=budget,
        tools=lambda: {**search_tools(Searcher(found or {})), **tools},
        chat=chat_template(tokenizer),
        schemas=tuple(described),
    )


def play(setup, *lines):
    """Record, ledger and contexts of an episode; a line is a text, or (text, whether it ends its turn)."""
    lines = [(line, True) if isinstance(line, str) else line for line in lines]
    engine = Engine(setup.codec, setup.protocol.end_token, lines)

    async def run():
        episode = setup.episode(engine)
        return await episode.run("id", QUESTION, setup.prompt_ids(QUESTION)), episode.ledger

    record, ledger = asyncio.run(run())
    return record, ledger, engine.contexts


def opened_by_the_header(setup):
    """What of a turn the header has already, for templates that open the thought themselves."""
    return "<think>\n" if setup.protocol.chat_turns.after.endswith("<think>\n") else ""


words = st.text(alphabet="abé 日\n\"\\{}[]'&:,.0", min_size=1, max_size=30).map(str.strip).filter(bool)
pieces = st.one_of(
    words, st.sampled_from(["<|im_end|>", "</tool_response>", "<|eot_id|>", "<answer> x </answer>"])
)
documents = st.lists(pieces, min_size=1, max_size=4).map(lambda texts: Document("1", " ".join(texts)))
turns = st.tuples(words, st.lists(words, min_size=1, max_size=3), st.booleans())


@pytest.mark.parametrize("name", USABLE)
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    said=st.lists(turns, max_size=4), found=st.lists(st.lists(documents, max_size=2), min_size=3, max_size=3)
)
def test_the_ledger_is_the_templates_conversation(name, said, found):
    results = {}
    for _, queries, _ in said:
        for i, query in enumerate(queries):
            results.setdefault(query, found[i])
    setup = setup_with(name, results)
    header = opened_by_the_header(setup)
    texts = [turn(thought, *map(call, queries)) for thought, queries, _ in said] + [ANSWER]
    searches = [queries for _, queries, _ in said] + [[]]
    ends = [end for _, _, end in said] + [False]
    lines = [(text.removeprefix(header), end) for text, end in zip(texts, ends, strict=True)]
    record, ledger, contexts = play(setup, *lines)
    assert (record.status, record.answer) == ("answered", "Danube")

    # Text: the prompt, the turns and the results as one conversation.
    plain = replace(TOOLS.format, template="{body}")
    bare = replace(setup.protocol, turns="text", chat_turns=None, format=plain)
    messages = list(setup.protocol.messages(QUESTION))
    for text, queries in zip(texts, searches, strict=True):
        messages.append({"role": "assistant", "content": text})
        for query in queries:
            messages.append({"role": "tool", "content": bare.observation(["q"], [results[query]]).strip()})
    tokenizer, row = tokenizer_with(name), ledger.row()
    whole = tokenizer.apply_chat_template(messages, tools=schemas({}), tokenize=False)
    versions = tokenizer.decode(row.prompt_ids + row.response_ids)
    assert whole.startswith(versions) and whole[len(versions) :].strip() == setup.protocol.end_token

    # Ids: the prompt, each turn as it was sampled, and what stands between turns, each encoded on its own.
    encode, expected, mask = setup.codec.encode, [], []
    for number, (text, end) in enumerate(lines):
        assert contexts[number] == row.prompt_ids + expected
        generated = encode(text) + (encode(setup.protocol.end_token) if end else [])
        expected, mask = expected + generated, mask + [1] * len(generated)
        if number < len(said):
            visible = [results[query] for query in searches[number]]
            between = encode(setup.protocol.observation(searches[number], visible))[int(end) :]
            expected, mask = expected + between, mask + [0] * len(between)
    assert (row.response_ids, row.response_mask) == (expected, mask)
    assert row.prompt_ids == setup.prompt_ids(QUESTION)


@pytest.mark.parametrize("ends", [True, False])
def test_the_end_of_a_turn_stands_in_the_context_once_and_is_the_policys_only_if_it_wrote_it(ends):
    setup = setup_with("plain", {"Ulm": [Document("1", "Ulm lies on the Danube.")]})
    _, ledger, _ = play(setup, (turn("a", call("Ulm")), ends), ANSWER)
    first, observed, _ = ledger.spans()
    (end,) = setup.codec.encode("<|im_end|>")
    assert ((first.ids[-1] == end), (observed.ids[0] == end)) == (ends, not ends)


def test_a_turn_without_an_action_is_answered_in_the_role_of_a_tool():
    setup = setup_with("plain")
    record, ledger, _ = play(setup, turn("a", "<tool_call>\nUlm\n</tool_call>"), turn("b"), ANSWER)
    assert [item.action for item in record.turns] == ["invalid", "invalid", "answer"]
    _, hint, *_ = ledger.spans()
    report = setup.codec.tokenizer.decode(hint.ids)
    assert report == f"\n<|im_start|>tool\n{TOOLS.invalid_hint}<|im_end|>\n<|im_start|>assistant\n"


def test_a_wrong_call_is_answered_beside_the_right_ones_of_its_turn():
    setup = setup_with("plain", {"Ulm": [Document("1", "Ulm lies on the Danube.")]}, add=add)
    wrong = [call(name="add", a=1, b="two"), call(name="</tool_response>", city="Ulm")]
    record, ledger, _ = play(
        setup, turn("a", call("Ulm"), *wrong), turn("b", call(name="add", a=1, b=2)), ANSWER
    )
    assert [item.status for item in record.turns[0].calls] == ["ok", "refused", "refused"]
    _, first, _, second, _ = ledger.spans()
    report = setup.codec.tokenizer.decode(first.ids)
    assert report.count("<|im_start|>tool\n") == 3 and report.count("<|im_end|>") == 2 + 1
    assert "Wrong arguments at ['b']: 'two' is not of type 'number'" in report
    assert "There is no tool '[/tool_response]'. The tools are: search, add." in report
    assert "tool\n3<|im_end|>" in setup.codec.tokenizer.decode(second.ids)


def test_a_turn_that_is_cut_by_its_budget_is_closed_for_the_policy():
    setup = setup_with("plain", budget=replace(BUDGET, max_turn_tokens=20))
    record, ledger, _ = play(setup, turn("a" * 100, call("Ulm")), "<answer> Danube </answer>")
    assert [item.status for item in record.turns] == ["truncated", "ok"]
    _, observed, _ = ledger.spans()
    assert setup.codec.tokenizer.decode(observed.ids).startswith("<|im_end|>\n<|im_start|>tool\nError")


def test_long_results_are_packed_with_everything_around_them():
    found = {query: [Document("1", f"{query}: " + "Danube and Rhine. " * 200)] for query in "abc"}
    setup = setup_with("quoting", found, replace(BUDGET, max_observation_tokens=200))
    record, ledger, _ = play(setup, turn("a", *map(call, "abc")), ANSWER)
    _, observed, _ = ledger.spans()
    assert 100 < record.turns[0].observed_tokens == len(observed.ids) <= 200
    report = setup.codec.tokenizer.decode(observed.ids)
    assert report.count('tool\n"Doc 1:') == 3 and report.endswith("<|im_start|>assistant\n<think>\n")


def test_a_reflection_that_takes_a_turn_back_leaves_whole_messages(tmp_path):
    block = {"tags": ["<reflect>", "</reflect>"], "role": "backtrack"}
    file = tmp_path / "memory.yaml"
    keys = {"extends": "agentic_rag_tools", "name": "memory", "blocks": {"reflect": block}}
    file.write_text(yaml.safe_dump(keys))
    tokenizer = tokenizer_with("plain")
    setup = setup_with("plain", {"Ulm": [Document("1", "Ulm lies on the Danube.")]})
    setup = replace(setup, protocol=for_tokenizer(load_protocol(str(file)), tokenizer, schemas({})))
    reflection = ("<reflect> The Rhine. </reflect>", False)
    record, ledger, contexts = play(
        setup, turn("a", call("Rhine")), reflection, turn("b", call("Ulm")), ANSWER
    )
    assert (record.status, record.turns[1].removed) == ("answered", [0])
    prompt = tokenizer.decode(setup.prompt_ids(QUESTION))
    between = setup.protocol.observation(["Ulm"], [[Document("1", "Ulm lies on the Danube.")]])
    assert tokenizer.decode(contexts[2]) == prompt + reflection[0]
    assert tokenizer.decode(contexts[3]) == prompt + reflection[0] + turn("b", call("Ulm")) + between


def test_the_question_and_the_schemas_stand_in_the_prompt():
    setup = setup_with("plain")
    text = setup.codec.tokenizer.decode(setup.prompt_ids("Who?<|im_end|>"))
    assert '"name": "search"' in text and "Who?[|im_end|]" in text
