from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import BM25Section
from retrieval_server.search.bm25 import Analyzer, top_hits
from retrieval_server.search.index_source import IndexSource

from ..builders import build
from ..running import run_python

PLAIN = BM25Section(stemmer="none", stopwords="none", k1=1.2, b=0.75)


def index(tmp_path, texts, section=PLAIN) -> IndexSource:
    corpus = tmp_path / "c.tsv"
    corpus.write_text("".join(f"p{i}\t{text}\n" for i, text in enumerate(texts)), encoding="utf-8")
    return IndexSource.open(build(corpus, tmp_path / "i", bm25=section))


def ids(results):
    return [[hit.passage.id for hit in hits] for hits in results]


def test_the_passage_that_names_the_thing_comes_first(bm25):
    answers = bm25.search(["In which river's valley lies Lübeck?", "barges on the Aller"], 3)
    assert [hits[0].passage.id for hits in answers] == ["town-3", "river-8"]


def test_scores_are_lucenes_formula(tmp_path):
    texts = ["ulm ulm donau", "donau inn", "weser", "weser aller fulda trave"]
    (hits,) = index(tmp_path, texts).search(["ulm donau"], 4)
    length = [len(text.split()) for text in texts]
    mean = sum(length) / len(length)

    def score(word, row):
        frequency = texts[row].split().count(word)
        documents = sum(word in text.split() for text in texts)
        idf = math.log(1 + (len(texts) - documents + 0.5) / (documents + 0.5))
        return idf * frequency / (frequency + 1.2 * (1 - 0.75 + 0.75 * length[row] / mean))

    assert [hit.passage.id for hit in hits] == ["p0", "p1"]
    expected = [score("ulm", 0) + score("donau", 0), score("donau", 1)]
    assert [hit.score for hit in hits] == pytest.approx(expected, rel=1e-5)
    assert all(type(hit.score) is float for hit in hits)


def test_five_passages_and_a_topk_above_them(tmp_path):
    retriever = index(tmp_path, ["one river", "two river", "three river", "four", "five"])
    assert ids(retriever.search(["river"], 50)) == [["p0", "p1", "p2"]]


def test_a_query_without_a_known_word_finds_nothing_and_keeps_its_place(bm25):
    assert ids(bm25.search(["zzz qqq", "Worms", "", " \n", "the of"], 1)) == [[], ["town-6"], [], [], []]


def test_stemming_and_stop_words_follow_the_manifest(tmp_path):
    stemmed = Analyzer(BM25Section(stemmer="english", stopwords="english", k1=1, b=0))
    assert stemmed.terms("The Rivers were carrying X-2 barges") == "river were carri x 2 barg".split()
    assert Analyzer(PLAIN).terms("The Rivers") == ["the", "rivers"]
    retriever = index(tmp_path, ["carries timber", "other"], PLAIN.model_copy(update={"stemmer": "english"}))
    assert ids(retriever.search(["carrying"], 1)) == [["p0"]]
    assert retriever.manifest.bm25.stemmer == "english"


def test_a_corpus_without_words_is_refused(tmp_path):
    with pytest.raises(UserError, match="no word to index"):
        index(tmp_path, ["...", "!?"])


def test_a_passage_without_words_is_never_found(tmp_path):
    assert ids(index(tmp_path, ["...", "ulm"]).search(["ulm ..."], 5)) == [["p1"]]


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 2.5]), max_size=40), st.integers(1, 50))
def test_top_hits_equal_a_full_sort(scores, topk):
    order = sorted(
        (row for row, score in enumerate(scores) if score > 0), key=lambda row: (-scores[row], row)
    )
    hits = top_hits(np.array(scores, dtype=np.float32), topk)
    assert [(hit.row, hit.score) for hit in hits] == [(row, scores[row]) for row in order[:topk]]


@given(st.lists(st.sampled_from(["Ulm town", "river", "Inn barges wide", "zzz", "", "the"]), max_size=6))
def test_results_of_a_batch_equal_those_of_each_query_alone(bm25, queries):
    assert bm25.search(queries, 4) == [bm25.search([query], 4)[0] for query in queries]


@pytest.mark.slow
def test_serving_bm25_loads_neither_torch_nor_faiss(bm25_index):
    code = (
        "import sys; from pathlib import Path; import retrieval_server.server.app; "
        "from retrieval_server.search.index_source import IndexSource; "
        f"assert IndexSource.open(Path({str(bm25_index)!r})).search(['Ulm'], 1)[0]; "
        "print([m for m in ('torch', 'faiss', 'transformers', 'verl', 'rag_r1') if m in sys.modules])"
    )
    assert run_python(code) == "[]\n"
