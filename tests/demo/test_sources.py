"""The world in pages: each fact is in one of two sources, at the end, and a query finds the page it means."""

from __future__ import annotations

import random

from rag_r1.demo.search import WorldSearch
from rag_r1.demo.sources import SOURCES, fresh_pages, lacking, other, pages_data, pages_of
from rag_r1.demo.world import make_world

WORLD = make_world(0, "train", people=20, places=10, words=12)


def test_every_fact_is_at_the_end_of_one_page_and_the_other_page_lacks_it():
    pages = pages_of(WORLD, 0)
    assert len(pages.world.passages) == 2 * len(WORLD.passages)
    contents = [passage["contents"] for passage in pages.world.passages]
    for entity, holder in pages.holder.items():
        own = {source: f'"{entity}"\nThe {source}: ' for source in SOURCES}
        (there,) = [text for text in contents if text.startswith(own[holder])]
        (absent,) = [text for text in contents if text.startswith(own[other(holder)])]
        assert there.endswith(pages.fact[entity])
        assert absent.endswith(lacking(other(holder), entity)) and pages.fact[entity] not in absent
    assert set(pages.holder.values()) == set(SOURCES)


def test_a_query_with_source_and_name_finds_that_page():
    pages = pages_of(WORLD, 0)
    search = WorldSearch(pages.world.passages, topk=1)
    for entity in pages.holder:
        for source in SOURCES:
            [[page]] = search.results([f"{source} {entity}"])
            assert page.contents.startswith(f'"{entity}"\nThe {source}: ')


def test_a_seed_draws_the_same_pages_and_another_one_others():
    assert pages_of(WORLD, 1) == pages_of(WORLD, 1) != pages_of(WORLD, 2)
    assert fresh_pages(random.Random(1)) == fresh_pages(random.Random(1))


def test_the_data_has_pages_of_both_worlds_and_no_comparisons():
    data = pages_data(0, train=30, val=12)
    ids = [passage["id"] for passage in data.passages]
    assert len(set(ids)) == len(ids) and {id.partition("-")[0] for id in ids} == {"train", "test"}
    for questions, count in ((data.train, 30), (data.val, 12)):
        kinds = [question.kind for question in questions]
        assert len(kinds) == count and {kinds.count(kind) for kind in set(kinds)} == {count // 3}
        assert "comparison" not in kinds and "both" in kinds
