"""Protocols are data: a file of one's own loads, and a wrong one is refused by the name of its key."""

import copy
from pathlib import Path

import pytest
import yaml

import rag_r1.protocols
from rag_r1.protocols import Document, ProtocolError, load_protocol, load_with_prompt

SHIPPED = Path(rag_r1.protocols.__file__).parent / "rag_r1_mq.yaml"


@pytest.fixture
def data():
    return yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))


@pytest.fixture
def load(tmp_path):
    def write_and_load(data, **kwargs):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        return load_protocol(str(path), **kwargs)

    return write_and_load


def test_a_file_of_ones_own_is_used_as_it_stands(load, data):
    data.update(name="mine", query_syntax="single", max_queries=1)
    data["tags"]["search"] = ["<q>", "</q>"]
    data["prompt"]["system"] = "You may search."
    data["observation"] = {
        "template": "<information>{body}{rank}</information>",
        "body": "text",
        "document": "[{rank}|{title}|{text}]",
        "separator": ";",
    }
    protocol = load(data)
    assert protocol.stop == ("</q>", "</answer>")
    assert protocol.messages("Who?")[0] == {"role": "system", "content": "You may search."}
    assert protocol.parse("<q> a, b </q>").queries == ("a, b",)
    documents = [Document("1", "T {text} {rank}\nbody {title}"), Document("2", "U\nv\\1")]
    visible = protocol.observation(["q"], [documents])
    # Placeholders that stand in a document are not filled in.
    assert visible == "<information>[1|T {text} {rank}|body {title}];[2|U|v\\1]{rank}</information>"


def test_a_protocol_and_a_prompt_in_the_home_folder_are_found(data, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    (tmp_path / "prompt.txt").write_text("Say it: {question}")
    assert load_with_prompt("~/mine.yaml", "~/prompt.txt").user_prompt == "Say it: {question}"


def test_an_unknown_name_is_answered_with_the_shipped_ones():
    with pytest.raises(ProtocolError, match="'rag_r2'.*rag_r1_mq, rag_r1_sq, search_r1"):
        load_protocol("rag_r2")


@pytest.mark.parametrize("name", ["", "../protocols/search_r1", "search_r1.yml", "no/such/file.yaml", "/"])
def test_a_name_that_is_no_protocol_is_refused(name):
    with pytest.raises(ProtocolError):
        load_protocol(name)


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "just text", b"\xff\xfe\xff"])
def test_a_file_that_is_no_mapping_is_refused_with_its_path(tmp_path, text):
    path = tmp_path / "broken.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ProtocolError, match="broken.yaml"):
        load_protocol(str(path))


KEYS = [
    *[
        (key,)
        for key in ("name", "prompt", "tags", "query_syntax", "max_queries", "observation", "invalid_hint")
    ],
    ("prompt", "user"),
    *[("tags", key) for key in ("think", "search", "information", "answer")],
    *[("observation", key) for key in ("template", "body", "document", "separator")],
]


@pytest.mark.parametrize("key", KEYS, ids=".".join)
def test_a_missing_key_is_named(load, data, key):
    owner = data
    for part in key[:-1]:
        owner = owner[part]
    del owner[key[-1]]
    with pytest.raises(ProtocolError, match=f"mine.yaml: {'.'.join(key)} is missing"):
        load(data)


def test_all_faults_of_a_file_are_named_at_once(load, data):
    del data["tags"], data["max_queries"], data["prompt"]["user"], data["observation"]["body"]
    data |= {"max_querys": 2, "invalid_hint": True, "blocks": {"x": 1, "y": {"role": "plan"}}}
    with pytest.raises(ProtocolError) as raised:
        load(data)
    named, _, remedy = str(raised.value).partition("mine.yaml: ")[2].rpartition(": correct the keys; ")
    *faults, unknown = named.split("; ")
    assert faults == [
        "tags is missing",
        "max_queries is missing",
        "blocks.x must be {tags, role, ...}, not 1",
        "blocks.y.tags is missing",
        "prompt.user is missing",
        "observation.body is missing",
        "invalid_hint must be a text, not True",
    ]
    assert unknown == "unknown key max_querys (did you mean max_queries?)"
    assert "`extends: rag_r1_mq`" in remedy


@pytest.mark.parametrize(
    "key", [(), ("prompt",), ("tags",), ("observation",)], ids=lambda key: ".".join(key) or "top"
)
def test_an_unknown_key_is_named(load, data, key):
    owner = data
    for part in key:
        owner = owner[part]
    owner["surprise"] = 1
    with pytest.raises(
        ProtocolError, match=rf"unknown key {'.'.join([*key, 'surprise'])} \(use one of \w+, "
    ):
        load(data)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", 3, "name must be a text"),
        ("max_queries", "3", "max_queries must be a whole number"),
        ("max_queries", True, "max_queries must be a whole number"),
        ("max_queries", 0, "max_queries is 0"),
        ("query_syntax", "commas", "query_syntax must be one of single, list, named, json, not 'commas'"),
        ("query_syntax", "single", "max_queries is 3"),
        ("query_syntax", "named", "max_queries is 3; single and named take 1, the other syntaxes 1 or more"),
        ("query_delete", 3, "query_delete must be a text"),
        ("query_white_space", "drop", "query_white_space must be one of keep, fold, not 'drop'"),
        ("answer_opening", "second", "answer_opening must be one of first, last, not 'second'"),
        ("prompt", "text", "prompt must be a mapping"),
        ("prompt.user", "no place for it", "prompt.user must contain {question}"),
        ("prompt.form", "xml", "prompt.form must be one of chat, text"),
        ("prompt.opening", "<answer> x </answer>", "prompt.opening must not contain an action"),
        ("tags.search", "<search>", "tags.search must be a list"),
        ("tags.search", ["<search>"], "tags.search must be .opening, closing."),
        ("tags.think", ["<think>", ""], "tags.think must be .opening, closing."),
        ("tags.think", ["<think>", " \n"], "tags.think must be .opening, closing."),
        ("tags.answer", ["<answer>", "</search>"], "tags: '</search>' is used for two tags"),
        ("tags.answer", ["**", "**"], r"tags: '\*\*' is used for two tags"),
        ("observation.body", "xml", "observation.body must be one of text, json"),
        ("observation.document", "Doc {rank}", "observation.document must contain {contents} or {text}"),
        ("observation.template", "<information></information>", "observation.template must contain {body}"),
        ("observation.template", "{body}", "observation.template must put {body} between"),
        ("observation.template", "</information>{body}<information>", "observation.template must put {body}"),
        ("observation.trim", "none", "observation.trim must be one of ends, starts, not 'none'"),
        ("observation.nothing_found", "None", "observation.nothing_found must contain both tags.information"),
    ],
)
def test_a_wrong_value_is_named(load, data, key, value, message):
    *owners, last = key.split(".")
    owner = data
    for part in owners:
        owner = owner[part]
    owner[last] = value
    with pytest.raises(ProtocolError, match=message):
        load(data)


def test_a_prompt_of_ones_own_replaces_the_protocols(load, data):
    data["prompt"]["system"] = "A system prompt that belongs to the old prompt."
    before = copy.deepcopy(load(data))
    protocol = load(data, prompt="Q: {question}\nA: {think} {")
    assert protocol.messages("1 {question} 2") == [
        {"role": "user", "content": "Q: 1 {question} 2\nA: {think} {"}
    ]
    assert protocol.observation(["q"], [[]]) == before.observation(["q"], [[]])
    assert (protocol.stop, protocol.invalid_hint, protocol.tags) == (
        before.stop,
        before.invalid_hint,
        before.tags,
    )


def test_a_file_that_extends_another_gives_only_what_differs(tmp_path, load, data):
    load(data)  # tmp_path/mine.yaml
    below = tmp_path / "below"
    below.mkdir()
    text = "extends: ../mine.yaml\nname: child\nprompt: {opening: <think>}\nobservation: {separator: ;}"
    (below / "child.yaml").write_text(text)
    child, parent = load_protocol(str(below / "child.yaml")), load(data)
    assert (child.name, child.opening, child.format.separator) == ("child", "<think>", ";")
    assert (child.tags, child.user_prompt, child.format.template) == (
        parent.tags,
        parent.user_prompt,
        parent.format.template,
    )


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("no_such", "mine.yaml: extends: unknown protocol 'no_such'"),
        ("gone.yaml", "cannot read protocol .*gone.yaml"),
        ("null\0.yaml", "cannot read protocol .*embedded null"),
        ("mine.yaml", "mine.yaml: extends: a cycle, or over 8 files"),
        (3, "mine.yaml: extends must name a protocol, not 3"),
    ],
)
def test_what_cannot_be_extended_is_refused(load, extends, message):
    with pytest.raises(ProtocolError, match=message):
        load({"extends": extends})


def test_a_block_and_a_tool_of_an_extended_protocol_are_taken_away_by_null(tmp_path, load, data):
    plan = {"tags": ["<plan>", "</plan>"], "role": "plan"}
    parent = load(data | {"blocks": {"plan": plan}, "tools": {"Wiki": "search", "Web": "search"}})
    assert "plan" in [block.name for block in parent.blocks]
    (tmp_path / "child.yaml").write_text("extends: mine.yaml\nblocks: {plan: null}\ntools: {Wiki: null}")
    child = load_protocol(str(tmp_path / "child.yaml"))
    assert "plan" not in [block.name for block in child.blocks]
    assert child.queries.names == (("Web", "search"),)


def test_an_empty_hint_means_none_and_a_missing_one_is_a_mistake(load, data):
    data["invalid_hint"] = ""
    assert load(data).invalid_hint is None


@pytest.mark.parametrize("prompt", ["", "no place", "{Question}"])
def test_a_prompt_without_a_place_for_the_question_is_refused(prompt):
    with pytest.raises(ProtocolError, match="{question}"):
        load_protocol("rag_r1_sq", prompt=prompt)
