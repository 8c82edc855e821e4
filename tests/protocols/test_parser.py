"""One generated turn -> one action: the table of RAG-R1's query syntax, and what hostile text becomes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import Answer, Invalid, Search, load_protocol

SQ, MQ = load_protocol("rag_r1_sq"), load_protocol("rag_r1_mq")


@pytest.mark.parametrize(
    ("body", "queries"),
    [
        ("one", ["one"]),
        ("a,b", ["a", "b"]),
        (" a ,  b ,c ", ["a", "b", "c"]),
        # White space inside a query stays as it was written.
        ("capital of\n France,\ttallest  tower", ["capital of\n France", "tallest  tower"]),
        # A comma inside a query: in double quotes, or in a JSON list.
        ('"Paris, Texas", population of Rome', ["Paris, Texas", "population of Rome"]),
        ('"Paris, Texas"', ["Paris, Texas"]),
        ('a, "b, c" ,d', ["a", "b, c", "d"]),
        ('["Paris, Texas", "1,000 islands"]', ["Paris, Texas", "1,000 islands"]),
        ('["a"]', ["a"]),
        ('["é", "\\u00e9", "\\"x\\""]', ["é", '"x"']),
        ('["a", 5, null, ["b"], {"c": "d"}]', ["a"]),
        # A comma inside a number.
        ("people of 1,000 islands", ["people of 1,000 islands"]),
        ("1,000,000, two", ["1,000,000", "two"]),
        ("1999,2001", ["1999", "2001"]),
        ("in 1999, 2000", ["in 1999", "2000"]),
        ("5,12", ["5", "12"]),
        # Quotes that are not the comma form stay as they are.
        ('who wrote "Dune", who read it', ['who wrote "Dune"', "who read it"]),
        ('"Dune" author', ['"Dune" author']),
        ('"open, never closed', ['"open', "never closed"]),
        ('5" pipe', ['5" pipe']),
        # Something that only looks like a JSON list.
        ("[sic], b", ["[sic]", "b"]),
        ('["a", "b"', ['["a"', "b"]),
        # Repeats (white space and letter case aside) and empty queries are left out.
        ("Rome, rome , ROME", ["Rome"]),
        ("a  b, a b, A\nb", ["a  b"]),
        ("STRASSE, straße", ["STRASSE"]),
        ("a,,b,", ["a", "b"]),
        (',"", a', ["a"]),
        ('["", " ", "a"]', ["a"]),
        # At most three, counted after the repeats.
        ("a, a, b, c", ["a", "b", "c"]),
        ("a, b, c, d, e", ["a", "b", "c"]),
        # A lone surrogate, which JSON can write and no tokenizer can read.
        ('["x\\ud800y"]', ["x?y"]),
    ],
)
def test_multi_query_syntax(body, queries):
    assert MQ.parse(f"<think> so </think> <search>{body}</search>").queries == tuple(queries)


def test_queries_beyond_the_limit_are_counted():
    assert MQ.parse("<search>a, b, c, d, A, e</search>") == Search(("a", "b", "c"), dropped=2)


@pytest.mark.parametrize(
    "body", ["a, b", "1,000", '"Paris, Texas"', '["a", "b"]', "[", '"', ",", "{question}", "a [b] (c)"]
)
def test_a_single_query_is_taken_as_it_stands(body):
    assert SQ.parse(f"<search>\n {body} </search>") == Search((body,))


@pytest.mark.parametrize("protocol", [SQ, MQ], ids=["sq", "mq"])
@pytest.mark.parametrize("body", ["", " ", "\n\t"])
def test_an_empty_search_is_invalid(protocol, body):
    assert protocol.parse(f"<search>{body}</search>") == Invalid("empty query")


@pytest.mark.parametrize("body", [",", " , ,,", "[]", '["", " "]', "[1, 2]", '""', '"","  "', "[[]]"])
def test_a_list_without_any_query_is_invalid(body):
    assert MQ.parse(f"<search>{body}</search>") == Invalid("empty query")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<answer> Beijing </answer>", Answer("Beijing")),
        ("<think> a </think>\n<answer>\nTwo\nlines\n</answer>", Answer("Two\nlines")),
        ("<answer></answer>", Answer("")),
        # Several closed blocks: the first counts.
        ("<search> a </search> <search> b </search>", Search(("a",))),
        ("<search> a </search> <answer> b </answer>", Search(("a",))),
        ("<answer> b </answer> <search> a </search>", Answer("b")),
        # A block that is opened again: of a search the last opening counts, of an answer the first.
        ("<search> a <search> b </search>", Search(("b",))),
        ("<answer> x <answer> y </answer>", Answer("x <answer> y")),
        ("<search> a <answer> b </answer> </search>", Answer("b")),
        ("<answer> a <search> b </search> </answer>", Search(("b",))),
        ("<think> <search> a </search>", Search(("a",))),
        # Nothing that can be carried out.
        ("", Invalid("no closed search or answer")),
        ("I know it.", Invalid("no closed search or answer")),
        ("<search> a", Invalid("no closed search or answer")),
        ("<answer> a < /answer>", Invalid("no closed search or answer")),
        ("<Search> a </Search>", Invalid("no closed search or answer")),
        ("a </search>", Invalid("</search> without <search>")),
        ("a </answer> <search> b </search>", Invalid("</answer> without <answer>")),
        ("<answer> a </search>", Invalid("</search> without <search>")),
        ("</search> <search>", Invalid("</search> without <search>")),
        ("<search> a <search></search>", Invalid("empty query")),
    ],
)
@pytest.mark.parametrize("protocol", [SQ, MQ], ids=["sq", "mq"])
def test_the_action_of_a_turn(protocol, text, action):
    assert protocol.parse(text) == action


def test_information_that_the_policy_makes_up_is_not_read():
    made_up = "<information> <answer> Rome </answer> </information>"
    assert SQ.parse(f"<search> a </search>{made_up}") == Search(("a",))


LONG = 200_000


@pytest.mark.parametrize(
    "body",
    [
        "[" * LONG,
        '["' * (LONG // 2),
        '{"a":' * (LONG // 5),
        "[" + "1" * LONG + "]",
        '"' * LONG,
        '" ' * (LONG // 2),
        '",' * (LONG // 2),
        '"a"b,' * (LONG // 5),
        '"a' + " " * LONG + "b",
        '"a"' + " " * LONG + "b",
        " " * LONG + '"',
        "," * LONG,
        "1,000" * (LONG // 5),
        "a " * (LONG // 2),
    ],
    ids=lambda body: repr(body[:8]),
)
def test_a_very_long_text_of_hostile_query_is_read(body):
    assert MQ.parse(f"<search>{body}</search>").kind in ("search", "invalid")


@pytest.mark.parametrize("text", ["<search>", "</search>", "<answer><search>", "<think></think>", "<"])
def test_a_very_long_text_of_tags_is_read(text):
    assert MQ.parse(text * (LONG // len(text))).kind == "invalid"


def folded(query: str) -> str:
    """What repeats of a query have in common."""
    return " ".join(query.split()).casefold()


PIECES = [*"<search> </search> <answer> </answer> <think> 1,000".split(), *',"[] aé']


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=20).map("".join))
def test_any_text_has_an_action_that_can_be_carried_out(text):
    for protocol in (SQ, MQ):
        action = protocol.parse(text)
        if isinstance(action, Search):
            assert 1 <= len(action.queries) <= protocol.max_queries
            assert len({folded(query) for query in action.queries}) == len(action.queries)
            for query in action.queries:
                assert query and query == query.strip()
                assert "</search>" not in query and "<search>" not in query
        else:
            assert isinstance(action, Answer | Invalid)


QUERY = st.text(min_size=1, max_size=12).map(str.strip).filter(bool)


@given(st.lists(QUERY.filter(lambda q: '"' not in q), min_size=1, max_size=3, unique_by=folded))
def test_quoted_queries_come_back_as_they_were_written(queries):
    body = ", ".join(f'"{query}"' for query in queries)
    assert MQ.parse(f"<search> {body} </search>").queries == tuple(queries)
