"""Each engine is asked and read as its documentation says."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.errors import UserError
from retrieval_server.web.engines import ENGINES
from retrieval_server.web.options import WebOptions
from retrieval_server.web.source import WebSource

from .conftest import APIS, KEY

ALL = list(ENGINES)


def ask(source, *searches):
    async def main():
        try:
            return [await source.answer(query, topk) for query, topk in searches]
        finally:
            await source.close()

    return asyncio.run(main())


@pytest.mark.parametrize("stub", ALL, indirect=True)
def test_results_become_documents_in_the_house_convention(stub, open_source):
    ((first, second),) = ask(open_source(), ("rivers", 2))
    assert first.passage.id == first.passage.url == "https://example.org/rivers/1"
    snippet = "Snippet 1 about rivers: if a < b, use List<String>."
    assert first.passage.contents == f'"rivers no. 1 & more"\n{snippet}'
    assert (first.score, second.score) == (1.0, 0.5)
    assert second.passage.id == "https://example.org/rivers/2"


@pytest.mark.parametrize(
    "stub, method, header, value, fields",
    [
        ("serper", "POST", "x-api-key", KEY, {"q": "Ulm & Co?", "num": 10}),
        (
            "bing",
            "GET",
            "ocp-apim-subscription-key",
            KEY,
            {"q": "Ulm & Co?", "count": "10", "responseFilter": "Webpages", "textFormat": "Raw"},
        ),
        ("tavily", "POST", "authorization", f"Bearer {KEY}", {"query": "Ulm & Co?", "max_results": 10}),
        (
            "brave",
            "GET",
            "x-subscription-token",
            KEY,
            {"q": "Ulm & Co?", "count": "10", "result_filter": "web", "text_decorations": "false"},
        ),
        (
            "bocha",
            "POST",
            "authorization",
            f"Bearer {KEY}",
            {"query": "Ulm & Co?", "freshness": "noLimit", "summary": True, "count": 10, "page": 1},
        ),
        ("searxng", "GET", "accept", "application/json", {"q": "Ulm & Co?", "format": "json"}),
    ],
    indirect=["stub"],
)
def test_a_request_is_the_documented_one_and_the_key_is_in_its_header_only(
    stub, open_source, method, header, value, fields
):
    ask(open_source(), ("Ulm & Co?", 3))
    (request,) = stub.requests
    assert (request.method, request.fields) == (method, fields)
    assert request.headers[header] == value
    assert KEY not in request.path + str(request.fields)


@pytest.mark.parametrize(
    "stub, topk, count",
    [("serper", 11, 20), ("tavily", 100, 20), ("brave", 100, 20), ("bing", 100, 50)],
    indirect=["stub"],
)
def test_whole_pages_are_asked_for_up_to_what_the_engine_gives(stub, open_source, topk, count):
    (results,) = ask(open_source(), ("x", topk))
    assert int(stub.requests[0].fields[APIS[stub.api].count]) == count
    assert len(results) == min(topk, count)


@pytest.mark.parametrize("stub", ["searxng"], indirect=True)
def test_an_engine_without_a_count_gives_what_is_on_its_page(stub, open_source):
    assert [len(results) for results in ask(open_source(), ("x", 3), ("x", 100))] == [3, 20]


@pytest.mark.parametrize("stub", ["tavily"], indirect=True)
def test_more_parameters_of_the_api_are_passed_on(stub, open_source):
    ask(open_source(WebOptions(params={"search_depth": "advanced", "include_domains": ["a.org"]})), ("x", 1))
    assert stub.requests[0].fields["search_depth"] == "advanced"
    assert stub.requests[0].fields["include_domains"] == ["a.org"]


@pytest.mark.parametrize("name", ["q", "num", "api_key", "Token"])
def test_parameters_that_the_server_sets_and_keys_are_refused(environment, name):
    with pytest.raises(UserError, match=name):
        WebSource.open("serper", environment, WebOptions(params={name: "x"}))


@pytest.mark.parametrize("name", ALL)
def test_a_missing_key_or_address_is_named_before_anything_is_sent(name):
    engine = ENGINES[name]
    with pytest.raises(UserError, match=engine.key_variable or engine.url_variable):
        WebSource.open(name, {})


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "Schlüssel"])
def test_a_key_that_cannot_be_a_header_is_refused_unseen(key):
    with pytest.raises(UserError, match="SERPER_API_KEY") as error:
        WebSource.open("serper", {"SERPER_API_KEY": key})
    assert key not in str(error.value)


@pytest.mark.parametrize("address", ["", "/search", "/search/"])
@pytest.mark.parametrize("stub", ["searxng"], indirect=True)
def test_searxng_is_found_by_its_base_address(stub, environment, address):
    base = f"http://127.0.0.1:{stub.port}{address}"
    source = WebSource.open("searxng", environment | {"SEARXNG_URL": base})
    assert len(ask(source, ("x", 3))[0]) == 3
    assert stub.requests[0].path.rstrip("/") == "/search"


@pytest.mark.parametrize("url", ["", "a:80", "ftp://a", "http://", "http://[", "http://a:0", "http://a b"])
def test_an_address_that_is_none_is_refused(environment, url):
    with pytest.raises(UserError, match="--web-url"):
        WebSource.open("serper", environment, url=url)


def test_results_without_an_address_or_text_are_left_out_and_each_address_comes_once():
    rows = [
        {"title": "kept", "link": "https://a.org/", "snippet": "1"},
        {"title": "again", "link": "https://a.org/", "snippet": "2"},
        {"title": "", "link": "https://b.org/", "snippet": " "},
        {"title": "script", "link": "javascript:alert(1)", "snippet": "x"},
        {"title": "blank", "link": "https://c.org/a b", "snippet": "x"},
        {"title": "half a pair", "link": "https://d.org/\ud800", "snippet": "x"},
        {"title": "none", "snippet": "x"},
        {"title": None, "link": "https://e.org/", "snippet": "only a snippet"},
    ]
    results = ENGINES["serper"].parse({"organic": rows})
    assert [(d.url, d.contents) for d in results] == [
        ("https://a.org/", '"kept"\n1'),
        ("https://e.org/", '""\nonly a snippet'),
    ]


@pytest.mark.parametrize("name", ALL)
def test_an_answer_without_results_has_none(name):
    assert ENGINES[name].parse({"query": "x"}) == []


NAMES = "organic webPages value results web title name link url snippet content description".split()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
    max_leaves=20,
)


@pytest.mark.slow
@given(st.sampled_from(ALL), json_values)
def test_any_json_is_results_or_a_valueerror(name, answer):
    try:
        results = ENGINES[name].parse(answer)
    except ValueError:
        return
    assert len({document.url for document in results}) == len(results)
    assert all(document.url.startswith(("http://", "https://")) for document in results)
