"""The pool of passages: documents are whole in one split, and memory does not grow with the corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.io.errors import DataError
from rag_r1.questions.passages.documents import SourcePassage, first_of_copies, read_pool

LONG = "This is a text that is long enough for a question."


def written(folder: Path, rows: list[dict], name: str = "corpus.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pages(documents: int, passages: int = 3) -> list[dict]:
    return [
        {"id": f"{page}-{number}", "title": f"Page {page}", "text": f"{LONG} It is part {number}."}
        for page in range(documents)
        for number in range(passages)
    ]


@given(seed=st.integers(0, 1000), share=st.floats(0, 1))
def test_all_passages_of_a_document_are_in_one_split(seed, share, tmp_path_factory):
    path = written(tmp_path_factory.mktemp("corpus"), pages(8))
    pool = read_pool([path], seed, share, 100)
    splits = {(passage.document, passage.split) for passage in pool.passages}
    assert len(splits) == 8 and len(pool.passages) == pool.n_read == 24
    if share in (0, 1):
        assert {split for _, split in splits} == {("train", "test")[int(share)]}


def test_of_a_large_corpus_only_some_documents_are_kept_and_always_the_same(tmp_path):
    rows = pages(40)
    pool = read_pool([written(tmp_path, rows)], 0, 0.2, 12)
    again = read_pool([written(tmp_path, rows[::-1])], 0, 0.2, 12)
    assert len(pool.passages) == 12 and pool.n_read == 120
    assert {passage.id for passage in pool.passages} == {passage.id for passage in again.passages}
    assert len({passage.document for passage in pool.passages}) <= 5, "whole documents, but for the last"


def test_a_source_is_the_host_of_an_address_or_the_file(tmp_path):
    web = written(tmp_path, [{"id": "a", "contents": LONG, "url": "https://host.org/a"}], "web.jsonl")
    own = written(tmp_path, [{"id": "b", "contents": LONG}], "own.jsonl")
    assert [passage.source for passage in read_pool([web, own], 0, 0, 9).passages] == [
        "host.org",
        "own.jsonl",
    ]


@pytest.mark.parametrize("url", ["http://[half", "https://exa\u2100mple.org/a", "no address"])
def test_the_source_of_an_address_without_a_host_is_the_file(url, tmp_path):
    path = written(tmp_path, [{"id": "a", "contents": LONG, "url": url}])
    assert [passage.source for passage in read_pool([path], 0, 0, 9).passages] == ["corpus.jsonl"]


def test_a_file_that_is_given_twice_is_named(tmp_path):
    path = written(tmp_path, pages(2))
    with pytest.raises(DataError, match="corpus.jsonl is given twice"):
        read_pool([path, tmp_path / ".." / tmp_path.name / path.name], 0, 0, 9)


def test_copies_have_the_same_text_or_nearly_the_same():
    text = "Ann Lee was born in Ulm in 1903, where she wrote the novel Grey Water and some letters."
    texts = (text, LONG, text, text.replace("some", "many"), text.upper(), LONG)
    passages = [SourcePassage(name, contents) for name, contents in zip("abcdef", texts, strict=True)]
    assert first_of_copies(passages) == dict(zip("abcdef", "abaaab", strict=True))


def test_the_hash_changes_with_the_texts(tmp_path):
    rows = pages(2)
    before = read_pool([written(tmp_path, rows)], 0, 0, 9).sha256
    rows[0]["text"] += " More."
    assert read_pool([written(tmp_path, rows)], 0, 0, 9).sha256 != before


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"id": "a", "contents": LONG}, {"id": "a", "contents": LONG}], "two passages have the id 'a'"),
        ([{"id": "a", "contents": "short"}], "no passage of at least"),
        ([{"id": "a", "contents": LONG}, {"contents": LONG}], "line 2"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused_with_its_place(rows, named, tmp_path):
    with pytest.raises(DataError, match=named):
        read_pool([written(tmp_path, rows)], 0, 0, 9)
