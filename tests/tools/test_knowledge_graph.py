"""Knowledge graphs: an RDF file, and a SPARQL endpoint."""

import importlib.util
import json

import pytest

from rag_r1.protocols import Failure, Refusal
from rag_r1.sandbox import rdf
from rag_r1.tools import graph, make_tool
from rag_r1.tools.graph import FactGraph
from rag_r1.tools.sparql import literal
from tests.fakes.json_server import JsonStub

TURTLE = """\
@prefix : <http://example.org/> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
:ada rdfs:label "Ada Lovelace"@en, "Ada de Lovelace"@fr ; :mother :Anne_Milbanke ; :born 1815 ;
  :known_for "a program"@en, "un programme"@fr .
:Anne_Milbanke :title "Lady Byron" .
:bridge rdfs:label "Ada Lovelace Bridge" ; :named_after :ada .
"""
ROWS = {"results": {"bindings": [{"who": {"type": "literal", "value": "Ada\nL."}, "n": {"value": "1"}}] * 3}}


needs_rdflib = pytest.mark.skipif(
    importlib.util.find_spec("rdflib") is None, reason="rdflib is not installed: pip install 'rag-r1[graph]'"
)
RDF = 'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:e="http://e/"'
ENTITIES = '<!DOCTYPE l [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {chr(98 + i)} "{("&" + chr(97 + i) + ";") * 10}">' for i in range(8)
)
ONE = f'<rdf:RDF {RDF}><rdf:Description rdf:about="http://e/x"><e:p>VALUE</e:p></rdf:Description></rdf:RDF>'
BOMB = ENTITIES + "]>" + ONE.replace("VALUE", "&i;")


@needs_rdflib
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


async def found(tmp_path, text: str, query: str):
    """The first thing that the query finds in a graph of these facts."""
    prefixes = "@prefix : <http://e/> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .\n"
    (tmp_path / "g.ttl").write_text(prefixes + text)
    tool = make_tool("kg", {"tool": "graph", "file": str(tmp_path / "g.ttl"), "topk": 1})
    ((document,),) = await tool.call([{"query": query}])
    return document


@needs_rdflib
async def test_a_text_with_an_address_in_it_is_shown_whole(tmp_path):
    ada = await found(tmp_path, ':ada :note "See https://e/wiki/Ada for more" .', "ada")
    assert ada.contents == '"ada"\nnote: See https://e/wiki/Ada for more'


@needs_rdflib
async def test_a_blank_node_is_shown_only_by_a_label(tmp_path):
    text = ':ada :lives [ :city :London ] . [] rdfs:label "A Society" ; :honours :ada .'
    assert (await found(tmp_path, text, "ada")).contents == '"ada"\nhonours of: A Society'
    assert (await found(tmp_path, text, "london")).contents == '"London"'
    society = await found(tmp_path, text, "society")
    assert (society.id, society.contents) == ("", '"A Society"\nhonours: ada')


@pytest.mark.parametrize("language", ["en", "EN", "en-US"])
def test_a_language_is_found_by_its_tag_in_any_case_and_of_any_region(language):
    terms = [["http://example.org/ada"], [graph._LABELS[0]], ["Ada Lovelace", "en-gb", ""]]
    (found,) = FactGraph(terms, [0, 1, 2], language).search("lovelace", 1, 5)
    assert found.contents == '"Ada Lovelace"'


async def test_an_endpoint_is_asked_in_the_policys_own_query_and_its_rows_are_told(monkeypatch):
    monkeypatch.setenv("KG_TOKEN", "SECRET")
    with JsonStub(lambda request: ROWS) as server:
        tool = make_tool(
            "kg", {"tool": "sparql", "url": f"{server.url}/sparql", "rows": 2, "token_env": "KG_TOKEN"}
        )
        ((results,),) = await tool.call([{"query": "SELECT ?who ?n {}"}])
        await tool.close()
    assert results.contents == "who: Ada L.; n: 1\nwho: Ada L.; n: 1\n(rows not shown: 1)"
    (request,) = server.asked
    assert (request.path, request.body) == ("/sparql", {"query": "SELECT ?who ?n {}"})
    assert request.headers["Authorization"] == "Bearer SECRET"
    assert request.headers["Accept"] == "application/sparql-results+json"


async def test_words_take_their_place_in_a_template_as_a_literal():
    with JsonStub(lambda request: {"boolean": True}) as server:
        tool = make_tool("kg", {"tool": "sparql", "url": server.url, "template": "ASK { ?x ?y {words} }"})
        ((results,),) = await tool.call([{"query": 'a"} DROP ALL\n\\'}])
        await tool.close()
    assert server.asked[0].body == {"query": 'ASK { ?x ?y "a\\"} DROP ALL\\n\\\\" }'}
    assert results.contents == "yes"


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
    with JsonStub(lambda request: answer) as server:
        tool = make_tool("kg", {"tool": "sparql", "url": server.url})
        (results,) = await tool.call([{"query": "SELECT"}])
        await tool.close()
    assert isinstance(results, kind)
    assert kind is Failure or results.reason == "The endpoint does not accept the query: line 1: no SELECT"
    assert len(server.asked) == 1


@needs_rdflib
@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf<!-- c --><?p?>\n" + BOMB.encode(),
        BOMB.encode("utf-16"),
        ('<?xml version="1.0" encoding="utf-16"?>' + BOMB).encode("utf-16"),
        b"\xfe\xff" + BOMB.encode("utf-16-be"),
        b'<?xml version="1.0" encoding="iso-8859-1"?>' + BOMB.encode(),
        b'<!DOCTYPE l SYSTEM "file:///etc/passwd">' + ONE.encode(),
    ],
)
def test_xml_with_a_document_type_is_refused_whatever_its_encoding(tmp_path, data):
    (tmp_path / "a.xml").write_bytes(data)
    with pytest.raises(ValueError, match="it declares a document type .*save it as Turtle"):
        rdf.read(str(tmp_path / "a.xml"), "xml")


@needs_rdflib
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("encoding.rdf", '<?xml version="1.0" encoding="gb2312"?><a/>'),
        ("nested.ttl", "@prefix : <http://e/> . :a :b " + "[" * 100_000),
        ("lists.ttl", "@prefix : <http://e/> . :a :b " + "(" * 100_000),
        ("number.ttl", f"<http://e/a> <http://e/b> {'9' * 10_000} ."),
        ("bomb.rdf", BOMB),
        ("bomb.owl", BOMB),
        ("nested.xml", f"<rdf:RDF {RDF}>" + "<rdf:Description><e:p>" * 1000),
        ("encoding.rdf", '<?xml version="1.0" encoding="utf-7"?><a/>'),
        ("long.ttl", f'<http://e/a> <http://e/b> "{"x" * (1 << 21)}" .'),
        ("wrong\x1b[31m.nt", "no triple"),
    ],
)
def test_a_file_of_another_hostile_shape_is_named_with_the_reason(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name.partition("\x1b")[0]) as error:
        FactGraph.read(tmp_path / name)
    assert "\x1b" not in str(error.value) and len(str(error.value)) <= 600


@needs_rdflib
@pytest.mark.slow
def test_a_file_that_takes_for_ever_or_fills_memory_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "CPU_S", 1.0)
    monkeypatch.setattr(graph, "CPU_S_PER_MIB", 0.0)
    (tmp_path / "a.ttl").write_text(
        f"@prefix : <http://e/{'x' * 200_000}> . " + " ".join(f":a{i} :b :c ." for i in range(20_000))
    )
    with pytest.raises(ValueError, match="a.ttl: it (takes more than 1 s of|needs more than)"):
        FactGraph.read(tmp_path / "a.ttl")
    kind = "http://www.w3.org/2001/XMLSchema#decimal"
    (tmp_path / "b.ttl").write_text(f'<http://e/a> <http://e/b> "1e999999999"^^<{kind}> .')
    with pytest.raises(ValueError, match="b.ttl: it (takes more than 1 s of|needs more than)"):
        FactGraph.read(tmp_path / "b.ttl")


@needs_rdflib
async def test_honest_xml_is_read_and_facts_keep_their_order(tmp_path):
    (tmp_path / "a.rdf").write_text(ONE.replace("VALUE", "10 &amp; more"))
    tool = make_tool("kg", {"tool": "graph", "file": str(tmp_path / "a.rdf")})
    (((results,),),) = (await tool.call([{"query": "x"}]),)
    assert results.contents.splitlines() == ['"x"', "p: 10 & more"]
    (tmp_path / "b.ttl").write_text('@prefix : <http://e/> . :x :p 10, 9, "b", "a"@en, :z, _:n ; :o 1 .')
    tool = make_tool("kg", {"tool": "graph", "file": str(tmp_path / "b.ttl")})
    ((results,),) = await tool.call([{"query": "x"}])
    assert results.contents.splitlines()[1:] == ["o: 1", "p: z", "p: a", "p: b", "p: 9", "p: 10"]
