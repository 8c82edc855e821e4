"""Each client in use, as it talks: the payload that it sends, and how it reads the answer.

The payloads and the keys that are read are those of the projects' own clients (mid-2026); the readers below
do with the answer what those do.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from retrieval_server.errors import UserError
from retrieval_server.search.index_source import IndexSource
from retrieval_server.server.pages import PageStore, check_pages

from ..builders import build, write_jsonl

PLACES = [
    {"id": "0", "contents": '"Ulm"\nUlm lies on the Donau.', "url": "https://wiki.example/Ulm"},
    {"id": "1", "contents": '"Trier"\nTrier lies on the Mosel.', "url": "https://wiki.example/Trier"},
    {"id": "2", "contents": '"Jena"\nJena lies on the Saale.', "url": "https://wiki.example/Jena"},
]
PAGES = [
    {"url": "https://wiki.example/Ulm", "contents": "Ulm\n\nThe whole page.", "title": "Ulm"},
    {"url": "https://wiki.example/w/index.php?title=Trier", "contents": "Trier, whole."},
]


@pytest.fixture(scope="module")
def client(tmp_path_factory, serve):
    folder = tmp_path_factory.mktemp("places")
    write_jsonl(folder / "pages.jsonl", PAGES)
    index = build(write_jsonl(folder / "corpus.jsonl", PLACES), folder / "index")
    with serve(lambda: IndexSource.open(index), topk=2, pages=folder / "pages.jsonl") as ready:
        yield ready


def post(client, path, payload):
    answer = client.post(path, json=payload)
    assert answer.status_code == 200, answer.text
    return answer.json()


def numbered(hits):
    """What SkyRL, Search-R1 and veRL's examples show to the model."""
    return "".join(f"Doc {i}: {hit['document']['contents'].strip()}\n" for i, hit in enumerate(hits, start=1))


def test_search_r1(client):
    payload = {"queries": ["Donau", "Saale"], "topk": 1, "return_scores": True}
    texts = [numbered(hits) for hits in post(client, "/retrieve", payload)["result"]]
    assert texts == ['Doc 1: "Ulm"\nUlm lies on the Donau.\n', 'Doc 1: "Jena"\nJena lies on the Saale.\n']


def test_skyrl_with_a_single_query(client):
    payload = {"query": "Mosel", "topk": 3, "return_scores": True}
    (hits,) = post(client, "/retrieve", payload)["result"]
    assert numbered(hits) == 'Doc 1: "Trier"\nTrier lies on the Mosel.\n' and hits[0]["score"] > 0


def test_rllm(client):
    body = post(client, "/retrieve", {"query": "Donau Mosel", "top_k": 1})
    (hit,) = body["results"]
    assert f"(ID: {hit['document']['id']}, Score: {hit['score']:.3f})".startswith("(ID: 0, Score: ")
    assert hit["document"]["contents"] == PLACES[0]["contents"] and body["query"] == "Donau Mosel"
    assert post(client, "/retrieve", {"query": "nothing known", "top_k": 1})["results"] == []
    assert client.get("/health").status_code == 200


def test_rllm_with_flat_results(client):
    """Its asynchronous examples read `id`, `content` and `score` of each result, empty if one is missing."""
    results = post(client, "/retrieve", {"query": "Donau Mosel", "top_k": 2})["results"]
    texts = [(hit.get("id", ""), hit.get("content", ""), hit.get("score", 0.0) > 0) for hit in results]
    assert texts == [("0", PLACES[0]["contents"], True), ("1", PLACES[1]["contents"], True)]


def test_answers_to_a_list_of_queries_hold_each_text_once(client):
    for scored in (True, False):
        payload = {"queries": ["Donau", "Mosel"], "topk": 1, "return_scores": scored}
        body = post(client, "/retrieve", payload)
        assert set(body) == {"result"} and json.dumps(body).count("Ulm lies on the Donau.") == 1


def without_number(line):
    """What R1-Searcher's rollout shows of a line."""
    return re.sub(r"^\d+\s+", "", line)


def test_r1_searcher_shows_an_id_that_is_no_number(bm25, serve):
    with serve(lambda: bm25) as named:
        ((line,),) = post(named, "/queries", {"queries": ["Ulm"], "k": 1})["answers"]
    assert line.startswith("town-0\t") and without_number(line) == line


def test_r1_searcher_shows_a_passage_without_its_number(client):
    body = post(client, "/queries", {"queries": ["Donau", "nothing known"], "k": 5})
    assert body["answers"] == [["0\t" + PLACES[0]["contents"]], []]
    assert body["queries"] == ["Donau", "nothing known"]
    assert without_number(body["answers"][0][0]) == PLACES[0]["contents"]


def test_asearcher_searches_and_then_opens_what_it_found(client):
    result = post(client, "/retrieve", {"queries": ["Donau"], "topk": 3, "return_scores": False})["result"]
    ((matches,),) = result
    assert (matches["contents"], matches["url"]) == (PLACES[0]["contents"], "https://wiki.example/Ulm")
    pages = post(client, "/access", {"urls": [matches["url"], "https://wiki.example/Atlantis"]})["result"]
    assert [page["contents"] if page is not None else "" for page in pages] == ["Ulm\n\nThe whole page.", ""]


def test_browsecomp_plus_opens_a_document_by_its_id(client):
    body = post(client, "/documents", {"ids": ["2", "no such id", "0"]})
    assert body["result"] == [PLACES[2], None, PLACES[0]]


@pytest.mark.parametrize(
    "path, key, keys",
    [("/documents", "ids", value) for value in (["0"] * 65, ["x" * 1025], "0", None, [0])]
    + [("/access", "urls", ["https://wiki.example/Ulm"] * 65)],
)
def test_too_many_documents_and_what_is_no_list_of_them_is_refused(client, path, key, keys):
    answer = client.post(path, json={key: keys})
    assert answer.status_code == 422 and key in answer.json()["reason"]


def test_the_two_spellings_of_a_mediawiki_address_open_one_page(client):
    urls = ["https://wiki.example/w/index.php/Trier", "https://wiki.example/w/index.php?title=Trier"]
    first, second = post(client, "/access", {"urls": urls})["result"]
    assert first == second == {"url": urls[1], "contents": "Trier, whole."}


def test_a_server_without_pages_says_so(bm25, serve):
    with serve(lambda: bm25) as without:
        answer = without.post("/access", json={"urls": ["https://wiki.example/Ulm"]})
        assert (answer.status_code, answer.json()["error"]) == (404, "no_pages")


@pytest.mark.parametrize(
    "fault, line",
    [
        ("line 2", b"no JSON"),
        ("contents", b'{"url": "u"}'),
        ("strings", b'{"url": 1, "contents": "x"}'),
        ("line 2", b"[]"),
        ("line 2.*surrogates", b'{"url": "u", "contents": "\\ud800"}'),
    ],
)
def test_a_malformed_page_stops_the_server_with_its_line(tmp_path, line, fault):
    (tmp_path / "p.jsonl").write_bytes(b'{"url": "u", "contents": "x"}\n' + line + b"\n")
    with pytest.raises(UserError, match=fault):
        PageStore(tmp_path / "p.jsonl", progress=False)


@pytest.mark.parametrize("read", [check_pages, partial(PageStore, progress=False)])
def test_pages_that_cannot_be_read_are_an_error_with_a_remedy(read):
    with pytest.raises(UserError, match="--pages /proc/self/mem: Input/output error. Give a JSONL file"):
        read(Path("/proc/self/mem"))


def test_pages_are_found_at_their_offsets_the_first_of_two_counts(tmp_path, capsys):
    rows = [b'{"url": "https://a.example/%d", "contents": "page %d \xc3\xa9"}' % (i, i) for i in range(200)]
    rows += [b"", b'{"url": "https://a.example/7", "contents": "again"}']
    (tmp_path / "p.jsonl").write_bytes(b"\n".join(rows))
    store = PageStore(tmp_path / "p.jsonl")
    assert capsys.readouterr().err == "", "no bar, since this is no terminal"
    for i in range(200):
        url = f"https://a.example/{i}"
        assert store.get(url) == {"url": url, "contents": f"page {i} é"}
    assert store.get("https://a.example/200") is None and store.get("") is None
