"""Knowledge graphs: an RDF file, and a SPARQL endpoint."""

import importlib.util
import json

import pytest
from json_server import JsonStub

from rag_r1.protocols import Failure, Refusal
from rag_r1.tools import make_tool
from rag_r1.tools.sparql import literal

TURTLE = """\
@prefix : <http://example.org/> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
:ada rdfs:label "Ada Lovelace"@en, "Ada de Lovelace"@fr ; :mother :Anne_Milbanke ; :born 1815 ;
  :known_for "a program"@en, "un programme"@fr .
:Anne_Milbanke :title "Lady Byron" .
:bridge rdfs:label "Ada Lovelace Bridge" ; :named_after :ada .
"""
ROWS = {"results": {"bindings": [{"who": {"type": "literal", "value": "Ada\nL."}, "n": {"value": "1"}}] * 3}}


@pytest.mark.skipif(
    importlib.util.find_spec("rdflib") is None, reason="rdflib is not installed: pip install 'rag-r1[graph]'"
)
async def test_a_graph_tells_what_it_says_about_the_things_that_a_query_names(tmp_path):
    (tmp_path / "g.ttl").write_text(TURTLE)
    tool = make_tool("kg", {"tool": "graph", "file": str(tmp_path / "g.ttl"), "topk": 2})
    ada, mother, none = await tool.call(
        [{"query": "ada lovelace"}, {"query": "Anne_Milbanke"}, {"query": "?"}]
    )
    assert [document.contents.splitlines() for document in ada] == [
        [
            '"Ada Lovelace"',
            "born: 1815",
            "known for: a program",
            "mother: Anne Milbanke",
            "named after of: Ada Lovelace Bridge",
        ],
        ['"Ada Lovelace Bridge"', "named after: Ada Lovelace"],
    ]
    assert ada[0].id == "http://example.org/ada" and none == []
    assert mother[0].contents.splitlines() == [
        '"Anne Milbanke"',
        "title: Lady Byron",
        "mother of: Ada Lovelace",
    ]


async def test_an_endpoint_is_asked_in_the_policys_own_query_and_its_rows_are_told(monkeypatch):
    monkeypatch.setenv("KG_TOKEN", "SECRET")
    with JsonStub(lambda asked: ROWS) as server:
        tool = make_tool(
            "kg", {"tool": "sparql", "url": f"{server.url}/sparql", "rows": 2, "token_env": "KG_TOKEN"}
        )
        ((found,),) = await tool.call([{"query": "SELECT ?who ?n {}"}])
        await tool.close()
    assert found.contents == "who: Ada L.; n: 1\nwho: Ada L.; n: 1\n(1 more rows)"
    (asked,) = server.asked
    assert (asked.path, asked.body) == ("/sparql", {"query": "SELECT ?who ?n {}"})
    assert asked.headers["Authorization"] == "Bearer SECRET"
    assert asked.headers["Accept"] == "application/sparql-results+json"


async def test_words_take_their_place_in_a_template_as_a_literal():
    with JsonStub(lambda asked: {"boolean": True}) as server:
        tool = make_tool("kg", {"tool": "sparql", "url": server.url, "template": "ASK { ?x ?y {words} }"})
        ((found,),) = await tool.call([{"query": 'a"} DROP ALL\n\\'}])
        await tool.close()
    assert server.asked[0].body == {"query": 'ASK { ?x ?y "a\\"} DROP ALL\\n\\\\" }'}
    assert found.contents == "yes"


def test_a_literal_is_what_json_calls_a_string():
    assert json.loads(literal('a"b\\c\nd')) == 'a"b\\c\nd'


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((400, "line 1: no SELECT"), Refusal),
        ((503, "x"), Failure),
        ((302, ""), Failure),
        ({"results": 3}, Failure),
    ],
)
async def test_a_query_that_is_refused_is_the_policys_mistake_and_all_else_a_failure(answer, kind):
    with JsonStub(lambda asked: answer) as server:
        tool = make_tool("kg", {"tool": "sparql", "url": server.url})
        (found,) = await tool.call([{"query": "SELECT"}])
        await tool.close()
    assert isinstance(found, kind)
    assert kind is Failure or found.reason == "The endpoint does not accept the query: line 1: no SELECT"
    assert len(server.asked) == 1
