"""What a search finds beside a question's own passages."""

from __future__ import annotations

import asyncio
from functools import partial
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.protocols import Document, Failure
from rag_r1.questions.passages.documents import SourcePassage
from rag_r1.questions.search import JournaledSearch, SearchFailedError, neighbours_of
from rag_r1.rollouts.concurrency import without_waiting
from rag_r1.runs.cancel_token import CancelToken
from rag_r1.tools.retrieval.options import RetrieverConfig

LISTS = st.lists(st.integers(0, 12), max_size=8)


def documents(numbers):
    return [Document(str(number), f"{number} " * 9) for number in numbers]


def own(numbers):
    return [SourcePassage(document.id, document.contents) for document in documents(numbers)]


def test_the_question_comes_first_and_the_titles_in_turn():
    found = neighbours_of(own([1]), documents([1, 2, 3, 4]), [documents([1, 5, 6]), documents([7, 2, 8])], 2)
    assert [document.id for document in found] == ["2", "3", "7"]


def test_copies_of_ones_own_passages_are_not_beside_them():
    text = "Ann Lee was born in Ulm in 1903, and wrote many novels there."
    copy, other = Document("copy", f"{text} "), Document("other", "Bo Ray was born in Trier.")
    assert neighbours_of([SourcePassage("1", text)], [copy, other], [[copy]], 5) == [other]


def test_after_a_stop_nothing_is_searched(tmp_path):
    async def search() -> tuple[object, int]:
        stop = CancelToken()
        searcher = JournaledSearch(RetrieverConfig(url="http://127.0.0.1:9"), tmp_path / "s.ndjson", stop)
        stop("enough")
        result = await without_waiting(partial(searcher, ["a query"]))
        queries = searcher._client.stats.queries
        await searcher.close()
        return result, queries

    assert asyncio.run(search()) == (None, 0)


def test_what_is_found_beside_a_search_that_fails_is_recorded(tmp_path):
    searcher = JournaledSearch(RetrieverConfig(), tmp_path / "s.ndjson", CancelToken())
    searcher._client = AsyncMock(**{"search.side_effect": [[Failure("", detail="gone"), documents([1])]]})
    with pytest.raises(SearchFailedError, match="gone"):
        asyncio.run(searcher(["lost", "found"]))
    assert asyncio.run(searcher(["found"])) == [documents([1])]  # without another search


@given(mine=LISTS, question=LISTS, titles=st.lists(LISTS, max_size=4), most=st.integers(0, 6))
def test_nothing_of_ones_own_is_shown_nothing_twice_and_no_more_than_is_wanted(mine, question, titles, most):
    names = {str(number) for number in mine}
    found = neighbours_of(own(mine), documents(question), list(map(documents, titles)), most)
    ids = [document.id for document in found]
    assert not names & set(ids) and len(set(ids)) == len(ids) <= most + most // 2
    assert set(ids) <= {str(number) for numbers in (question, *titles) for number in numbers}
