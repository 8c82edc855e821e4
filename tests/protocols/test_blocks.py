"""A protocol declares its blocks: one more needs a line of YAML and no code."""

import pytest
import yaml

from rag_r1.protocols import (
    Answer,
    Backtrack,
    Call,
    Calls,
    Invalid,
    Plan,
    ProtocolError,
    Search,
    Summary,
    Think,
    load_protocol,
)


@pytest.fixture
def extended(tmp_path):
    def load(blocks, **keys):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump({"extends": "rag_r1_mq", "name": "mine", "blocks": blocks, **keys}))
        return load_protocol(str(path))

    return load


PLAN = {"tags": ["<plan>", "</plan>"], "role": "plan"}
CALL = {"tags": ["<call>", "</call>"], "role": "call"}
BACKTRACK = {"tags": ["<undo>", "</undo>"], "role": "backtrack"}


def test_a_plan_is_a_part_of_a_turn_or_a_turn_of_its_own(extended):
    text = "<plan> first the river </plan>"
    part, turn = extended({"plan": PLAN}), extended({"plan": PLAN | {"stop": True}})
    assert part.stop == ("</search>", "</answer>")
    assert part.parse(f"{text}<search> Ulm river </search>") == Search(("Ulm river",))
    assert turn.stop == ("</search>", "</answer>", "</plan>")
    assert turn.parse(text) == Plan("first the river")
    assert extended({"x": PLAN | {"role": "think", "stop": True}}).parse(text) == Think("first the river")


def test_tags_of_a_new_block_are_neutralised_in_documents(extended):
    assert extended({"plan": PLAN}).neutralise("a <plan> b </PLAN>") == "a [plan] b [/PLAN]"


def test_a_summary_says_that_the_context_can_be_rewritten(extended):
    protocol = extended({"sum": {"tags": ["<summary>", "</summary>"], "role": "summary"}})
    assert protocol.parse("so <summary> Ulm: Danube </summary>") == Summary("Ulm: Danube")
    assert protocol.rewrites_context and not load_protocol("rag_r1_mq").rewrites_context


def test_a_backtrack_says_what_it_takes_back(extended):
    protocol = extended({"undo": BACKTRACK | {"pops": ["call", "think"]}})
    assert protocol.parse("no. <undo> a wrong river </undo>") == Backtrack("a wrong river", ("call", "think"))
    assert protocol.rewrites_context and protocol.stop[-1] == "</undo>"


@pytest.mark.parametrize(
    ("syntax", "body"),
    [("named", "[Wiki]: Ulm"), ("json", '{"name": "Wiki", "arguments": {"query": "Ulm"}}')],
)
def test_a_call_may_use_another_name_for_a_tool(extended, syntax, body):
    protocol = extended({"call": CALL | {"syntax": syntax}}, tools={"Wiki": "search"})
    assert protocol.parse(f"<call> {body} </call>") == Search(("Ulm",))
    named = extended({"call": CALL | {"syntax": syntax}}, tools={"Notes": "notes", "Wiki": "search"})
    assert named.tools_called == ["search", "notes"], "so that a run without `notes` does not start"
    with pytest.raises(ProtocolError, match="tools must be"):
        extended({}, tools={"Wiki": 3})


@pytest.mark.parametrize(
    ("syntax", "body", "action"),
    [
        ("single", "2 + 2, or 3", Calls((Call("calculator", {"query": "2 + 2, or 3"}),))),
        (
            "list",
            "1 + 1, 2",
            Calls((Call("calculator", {"query": "1 + 1"}), Call("calculator", {"query": "2"}))),
        ),
        ("named", "[Wiki_RAG]: Ulm river", Calls((Call("Wiki_RAG", {"query": "Ulm river"}),))),
        ("named", "[search] Ulm river", Search(("Ulm river",))),
        ("named", "Ulm river", Invalid("a call must begin with the name of a tool, as in [name]: words")),
        ("json", '{"name": "add", "arguments": {"a": 1}}', Calls((Call("add", {"a": 1}),))),
        ("json", '[{"name": "search", "arguments": {"query": "x"}}]', Search(("x",))),
        # A result for each call, as for equal calls in several blocks: the policy counts on their order.
        ("json", '[{"name": "a"}, {"name": "a"}]', Calls((Call("a", {}), Call("a", {})))),
        ("json", '{"name": 3}', Invalid("a call must be JSON with a name and arguments")),
        ("json", "[" * 100_000, Invalid("a call must be JSON with a name and arguments")),
        ("json", "[]", Invalid("empty query")),
    ],
)
def test_calls_are_written_as_the_protocol_says(extended, syntax, body, action):
    protocol = extended({"calc": CALL | {"tool": "calculator", "syntax": syntax}})
    assert protocol.parse(f"<call> {body} </call>") == action


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("[" * 33 + "]" * 33, "nested more than 32 deep"),
        ("[" * 900 + "]" * 900, "nested more than 32 deep"),
        ('{"a": NaN}', "a number that JSON does not have"),
        ("-1e999", "a number that JSON does not have"),
    ],
)
def test_arguments_that_later_code_could_not_take_are_the_policys_mistake(extended, value, reason):
    protocol = extended({"calc": CALL | {"tool": "calculator", "syntax": "json"}})
    action = protocol.parse(f'<call> {{"name": "a", "arguments": {{"x": {value}}}}} </call>')
    assert isinstance(action, Invalid) and reason in action.reason


@pytest.mark.parametrize(("syntax", "most"), [("single", 1), ("named", 1), ("list", 3), ("json", 3)])
def test_a_block_allows_as_many_calls_as_its_syntax_can_express(extended, syntax, most):
    protocol = extended({"calc": CALL | {"syntax": syntax}}, max_queries=3)
    assert [block.call.max_calls for block in protocol.blocks if block.name == "calc"] == [most]


def test_calls_beyond_the_limit_are_dropped_and_counted(extended):
    protocol = extended({"calc": CALL | {"syntax": "json"}}, max_queries=2)
    calls = ", ".join(f'{{"name": "t{i}"}}' for i in range(5))
    assert protocol.parse(f"<call>[{calls}]</call>") == Calls((Call("t0", {}), Call("t1", {})), dropped=3)


def test_the_first_closed_block_is_the_action(extended):
    protocol = extended({"calc": CALL | {"tool": "calculator"}})
    action = protocol.parse("<call> 1 </call> <answer> 2 </answer>")
    assert action == Calls((Call("calculator", {"query": "1"}),))
    assert protocol.parse("<answer> 2 </answer> <call> 1 </call>") == Answer("2")
    assert protocol.tools_called == ["search", "calculator"]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("<plan>", "blocks.x must be"),
        ({"role": "plan"}, "blocks.x.tags is missing"),
        (PLAN | {"tags": ["<plan>"]}, "blocks.x.tags must be"),
        (
            PLAN | {"role": "dream"},
            "blocks.x.role must be one of think, plan, call, answer, summary, backtrack, not 'dream'",
        ),
        (PLAN | {"role": "observation"}, "blocks.x.role must be one of"),
        (PLAN | {"tool": "calculator"}, "unknown key blocks.x.tool"),
        (PLAN | {"tags": ["<think>", "</plan>"]}, "'<think>' is used for two tags"),
        (CALL | {"syntax": "xml"}, "blocks.x.syntax must be one of"),
        (BACKTRACK | {"pops": ["plan"]}, "blocks.x.pops must list some of call, think, summary"),
        (BACKTRACK | {"pops": []}, "blocks.x.pops must list some of"),
        (BACKTRACK | {"pops": "call"}, "blocks.x.pops must be a list, not 'call': correct"),
        (BACKTRACK | {"stop": False}, "blocks.x.stop: a generation always ends after a backtrack"),
        (BACKTRACK | {"span": "last_call"}, "unknown key blocks.x.span"),
        (
            BACKTRACK | {"role": "summary", "span": "half"},
            "blocks.x.span must be one of everything, last_call",
        ),
        (CALL | {"stop": False}, "blocks.x.stop: a generation always ends after a call"),
    ],
)
def test_a_wrong_block_is_named(extended, block, message):
    with pytest.raises(ProtocolError, match=message):
        extended({"x": block})


def test_a_block_cannot_take_the_name_of_one_under_tags(extended):
    with pytest.raises(ProtocolError, match="blocks.search: the name is already used under `tags`"):
        extended({"search": CALL})
