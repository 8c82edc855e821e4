"""Learned sparse and late-interaction search as back ends of one's own: the contract takes both unchanged.

The weights are made by hand. What a model would compute is what ``prepare`` returns: token weights for a
SPLADE, one vector for each token for a ColBERT.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from retrieval_server.errors import UserError
from retrieval_server.search.custom_backend import import_factory
from retrieval_server.search.index_source import IndexSource
from retrieval_server.search.options import OpenOptions

COMMON = """
import hashlib
from collections import defaultdict

import numpy as np

from retrieval_server.folder.manifest import PASSAGES
from retrieval_server.folder.passages import PassageStore
from retrieval_server.search.backends import Backend, Hit


def words(text):
    return text.lower().replace(".", " ").split()


def open_index(folder, manifest):
    return Search([passage.contents for passage in PassageStore(folder / PASSAGES)])
"""

SPARSE = """
# A word's weights, also for words that are not in the text: what SPLADE learns.
EXPANSIONS = {"city": {"city": 1.0, "town": 0.8}, "ship": {"ship": 1.0, "barges": 0.9, "river": 0.2}}


def weigh(text):
    weights = defaultdict(float)
    for word in words(text):
        for term, weight in EXPANSIONS.get(word, {word: 1.0}).items():
            weights[term] = max(weights[term], weight)
    return dict(weights)


class Search(Backend):
    def __init__(self, texts):
        self.postings = defaultdict(list)
        for row, text in enumerate(texts):
            for term, weight in weigh(text).items():
                self.postings[term].append((row, weight))

    def prepare(self, queries):
        return [weigh(query) for query in queries]

    def find(self, prepared, topk):
        answers = []
        for weights in prepared:
            scores = defaultdict(float)
            for term, weight in weights.items():
                for row, other in self.postings.get(term, ()):
                    scores[row] += weight * other
            best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:topk]
            answers.append([Hit(row, score) for row, score in best])
        return answers
"""

LATE = """
def tokens(text):
    rows = []
    for word in words(text):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
        vector = np.random.default_rng(seed).standard_normal(64)
        rows.append(vector / np.linalg.norm(vector))
    return np.array(rows)


class Search(Backend):
    def __init__(self, texts):
        self.passages = [tokens(text) for text in texts]

    def prepare(self, queries):
        return [tokens(query) for query in queries]

    def find(self, prepared, topk):
        answers = []
        for query in prepared:
            scores = [float((query @ passage.T).max(axis=1).sum()) for passage in self.passages]
            best = np.argsort(-np.array(scores), kind="stable")[:topk]
            answers.append([Hit(int(row), scores[row]) for row in best])
        return answers
"""


@pytest.fixture(params=[SPARSE, LATE], ids=["sparse", "late interaction"])
def source(request, bm25_index, tmp_path, monkeypatch):
    (tmp_path / "users_search.py").write_text(COMMON + request.param)
    monkeypatch.syspath_prepend(tmp_path)
    yield IndexSource.open(bm25_index, options=OpenOptions(backend="users_search:open_index"))
    sys.modules.pop("users_search")


def answers(source, queries, topk):
    return [[(hit.passage.id, hit.score) for hit in hits] for hits in source.search(queries, topk)]


def test_a_back_end_of_ones_own_finds_the_passages_of_the_index(source):
    (results,) = answers(source, ["the valley of the river Mosel"], 3)
    assert results[0][0] == "town-1" and np.all(np.diff([score for _, score in results]) <= 0)


def test_its_answers_depend_neither_on_the_batch_nor_but_for_their_number_on_topk(source):
    queries = ["barges with timber on the Weser", "Passau", "the valley of the river Mosel"]
    together = answers(source, queries, 5)
    assert [answers(source, [query], 5)[0] for query in queries] == together
    assert [hits[:2] for hits in together] == answers(source, queries, 2)


@pytest.mark.parametrize("source", [SPARSE], indirect=True, ids=["sparse"])
def test_a_learned_weight_finds_a_word_that_is_not_in_the_query(source):
    (results,) = answers(source, ["ship"], 20)
    assert {key for key, _ in results[:10]} == {f"river-{i}" for i in range(10)}, "they have barges"


def test_a_module_that_is_not_there_is_named_with_what_to_do():
    with pytest.raises(UserError, match="there is no module no_such_module. Correct the name, install"):
        import_factory("no_such_module:open_index")
