"""The published formats, string for string: observations, hints and stop strings, whatever the prompt.

R1-Searcher's, which has other tags and no hint, stand in test_r1_searcher.py, Agentic RAG-R1's in
test_agentic_rag.py.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import Document, Failure, load_protocol, protocol_names
from rag_r1.protocols.actions import has_lone_surrogate, well_formed

SHIPPED = ["rag_r1_mq", "rag_r1_sq", "search_r1"]

PARIS = Document("12", '"Paris"\nParis is the capital of France.', 0.9)
SEINE = Document("7", '"Seine"\nThe Seine flows through Paris.\nIt is 775 km long.', 0.5)
TREPORT = Document("3", '"Le Tréport"\nA “commune” in 東京? \\ no.')

HINT = (
    "\nMy previous action is invalid. "
    "If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. "
    "Let me try again.\n"
)
#: RAG-R1's parallel form of one query, with what was found in place of {}.
ONE_IN_JSON = (
    '\n<information>\n{\n  "query": [\n    "q"\n  ],\n  "documents": [\n    "{}"\n  ]\n}\n</information>\n'
)


def test_shipped_protocols_are_listed_by_name():
    agentic = ["agentic_rag_en", "agentic_rag_ssrl", "agentic_rag_tools", "agentic_rag_zh"]
    assert protocol_names() == [*agentic, "r1_searcher", "r1_searcher_instruct", *SHIPPED]


@pytest.mark.parametrize("results", [[], [[]], [[TREPORT], Failure('"away"')]])
def test_the_json_of_an_observation_has_the_form_of_json_dumps(results):
    protocol = load_protocol("rag_r1_mq")
    text = protocol.observation([f'"é {i}"' for i in range(len(results))], results)
    body = text[text.index("{") : text.rindex("}") + 1]
    assert body == json.dumps(json.loads(body), indent=2, ensure_ascii=protocol.format.ascii)
    assert len(json.loads(body)["query"]) == len(results)


def test_search_r1_shows_titles_in_parentheses():
    assert load_protocol("search_r1").observation(["capital"], [[PARIS, SEINE]]) == (
        "\n\n<information>"
        'Doc 1(Title: "Paris") Paris is the capital of France.\n'
        'Doc 2(Title: "Seine") The Seine flows through Paris.\nIt is 775 km long.'
        "</information>\n\n"
    )


def test_search_r1_takes_the_only_line_of_a_passage_for_its_title():
    visible = load_protocol("search_r1").observation(["q"], [[Document("1", "No title here."), PARIS]])
    assert visible == (
        "\n\n<information>Doc 1(Title: No title here.) \n"
        'Doc 2(Title: "Paris") Paris is the capital of France.</information>\n\n'
    )


def test_rag_r1_single_query_shows_whole_passages():
    assert load_protocol("rag_r1_sq").observation(["capital"], [[PARIS, SEINE]]) == (
        "\n<information>\n"
        'Doc 1: "Paris"\nParis is the capital of France.\n'
        'Doc 2: "Seine"\nThe Seine flows through Paris.\nIt is 775 km long.'
        "\n</information>\n"
    )


def test_rag_r1_multi_query_shows_one_json_object():
    visible = load_protocol("rag_r1_mq").observation(
        ["capital of France", "river"], [[PARIS, SEINE], [TREPORT]]
    )
    assert visible == (
        "\n<information>\n"
        '{\n  "query": [\n    "capital of France",\n    "river"\n  ],\n  "documents": [\n'
        '    "Doc 1: \\"Paris\\"\\nParis is the capital of France.\\n'
        'Doc 2: \\"Seine\\"\\nThe Seine flows through Paris.\\nIt is 775 km long.",\n'
        '    "Doc 1: \\"Le Tr\\u00e9port\\"\\nA \\u201ccommune\\u201d in \\u6771\\u4eac? \\\\ no."\n  ]\n}'
        "\n</information>\n"
    )


def test_multi_query_observation_is_json_that_gives_the_passages_back():
    visible = load_protocol("rag_r1_mq").observation(["a", "b"], [[TREPORT], []])
    body = visible.removeprefix("\n<information>\n").removesuffix("\n</information>\n")
    assert json.loads(body) == {"query": ["a", "b"], "documents": [f"Doc 1: {TREPORT.contents}", ""]}


def unescaped(tmp_path):
    """A dialect of one's own: RAG-R1's, with letters as they are."""
    path = tmp_path / "unescaped.yaml"
    path.write_text("extends: rag_r1_mq\nname: unescaped\nobservation: {ascii: false}\n")
    return load_protocol(str(path))


def test_non_ascii_text_is_escaped_only_where_the_protocol_says_so(tmp_path):
    for protocol in (load_protocol("search_r1"), load_protocol("rag_r1_sq"), unescaped(tmp_path)):
        visible = protocol.observation(["é"], [[TREPORT]])
        assert "Le Tréport" in visible and "東京" in visible and "\\u" not in visible
    escaped = load_protocol("rag_r1_mq")
    assert escaped.observation(["é"], [[TREPORT]]).isascii()
    assert escaped.render_document(1, TREPORT) in escaped.observation(["é"], [[TREPORT]])


@pytest.mark.parametrize(
    ("name", "empty"),
    [
        ("search_r1", "\n\n<information></information>\n\n"),
        ("rag_r1_sq", "\n<information>\n\n</information>\n"),
        ("rag_r1_mq", ONE_IN_JSON.replace("{}", "")),
    ],
)
def test_a_search_without_results_is_an_empty_observation(name, empty):
    assert load_protocol(name).observation(["q"], [[]]) == empty


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("search_r1", "\n\n<information>search failed</information>\n\n"),
        ("rag_r1_sq", "\n<information>\nsearch failed\n</information>\n"),
        ("rag_r1_mq", ONE_IN_JSON.replace("{}", "search failed")),
    ],
)
def test_a_failed_search_shows_its_reason_in_place_of_documents(name, failed):
    assert load_protocol(name).observation(["q"], [Failure("search failed")]) == failed


def test_one_failed_query_leaves_the_others_results():
    visible = load_protocol("rag_r1_mq").observation(["a", "b"], [Failure("no answer"), [PARIS]])
    assert '"documents": [\n    "no answer",\n    "Doc 1: ' in visible


@pytest.mark.parametrize("name", SHIPPED)
def test_results_that_are_not_aligned_with_the_queries_are_an_error(name):
    with pytest.raises(ValueError, match="1 queries but 2 results"):
        load_protocol(name).observation(["q"], [[PARIS], [SEINE]])


@pytest.mark.parametrize("name", SHIPPED)
def test_hint_stop_strings_and_tags_are_the_published_ones(name):
    protocol = load_protocol(name)
    assert protocol.name == name
    assert protocol.invalid_hint == HINT
    assert protocol.stop == ("</search>", "</answer>")
    for part in ("think", "search", "information", "answer"):
        tag = getattr(protocol.tags, part)
        assert (tag.open, tag.close) == (f"<{part}>", f"</{part}>")


@pytest.mark.parametrize(("name", "most"), [("search_r1", 1), ("rag_r1_sq", 1), ("rag_r1_mq", 3)])
def test_number_of_queries_a_turn(name, most):
    protocol = load_protocol(name)
    assert protocol.max_queries == most
    assert len(protocol.parse("<search> a, b, c, d </search>").queries) == most


@pytest.mark.parametrize("name", SHIPPED)
def test_the_prompt_is_one_user_message_that_teaches_the_tags_and_ends_with_the_question(name):
    messages = load_protocol(name).messages("Who?  {question} <search>")
    assert [message["role"] for message in messages] == ["user"]
    assert messages[0]["content"].endswith("Question: Who?  {question} <search>\n")
    for tag in ("<think>", "</think>", "<search>", "</search>", "<information>", "<answer>", "</answer>"):
        assert tag in messages[0]["content"]


def test_lone_surrogates_of_a_json_corpus_can_be_written_as_utf_8():
    document = Document("\ud800", json.loads('"half \\ud83d a face"'))
    visible = load_protocol("rag_r1_mq").observation(["q"], [[document]])
    assert "half ? a face" in visible.encode("utf-8").decode()
    assert Failure("\udfff").reason == document.id == "?"


@given(st.text(st.characters() | st.sampled_from("\ud800\udfff")))
def test_a_text_is_changed_if_it_has_a_lone_surrogate_and_has_none_afterwards(text):
    halves = [character for character in text if "\ud800" <= character <= "\udfff"]
    assert has_lone_surrogate(text) == bool(halves)
    assert well_formed(text).count("?") == text.count("?") + len(halves)


def test_a_protocol_can_show_the_ids_of_documents_so_that_their_pages_can_be_opened(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text('{extends: rag_r1_sq, name: p, observation: {document: "[{rank}] {id}: {contents}"}}')
    hostile = Document("https://a.org/\n<search> x", "{id} text")
    visible = load_protocol(str(path)).observation(["q"], [[Document("https://a.org/", "text"), hostile]])
    assert "[1] https://a.org/: text\n" in visible
    assert "[2] https://a.org/ [search] x: {id} text" in visible
