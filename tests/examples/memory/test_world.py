"""The world in pages: each fact is at the end of one page, and every other page refers to it."""

from __future__ import annotations

import random

import pytest

from examples.memory.world import fresh_pages, make_pages, pages_data, reference_line
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import make_world

WORLD = make_world(0, "train", people=20, places=10, words=12)


def test_half_of_the_pages_have_the_fact_and_the_others_refer_to_the_page_that_has_it():
    pages = make_pages(WORLD, 0)
    contents = [passage["contents"] for passage in pages.world.passages]
    assert len(contents) == len(WORLD.passages) + len(pages.references) == 1.5 * len(WORLD.passages)
    for entity, fact in pages.fact_texts.items():
        (page,) = [text for text in contents if text.startswith(f'"{entity}"\n')]
        (last,) = [text for text in contents if text.startswith(f'"{pages.fact_page(entity)}"\n')]
        assert last.endswith(fact) and pages.fact_page(entity) in fact
        if entity in pages.references:
            assert page.endswith(reference_line(entity, pages.fact_page(entity))) and fact not in page


def test_a_fact_says_what_it_said_in_the_plain_world():
    pages = make_pages(WORLD, 0)
    for relation, values in WORLD.facts.items():
        for entity, value in values.items():
            assert value in pages.fact_texts[entity], (relation, entity)


def test_the_names_referred_to_are_new_and_different():
    pages = make_pages(WORLD, 0)
    new = list(pages.references.values())
    assert len(set(new)) == len(new) and not set(new) & set(pages.fact_texts)


def test_too_few_free_names_are_an_error():
    full = make_world(0, "test", people=20, places=50)
    with pytest.raises(ValueError, match="free names .*, not 25"):
        make_pages(full, 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_query_with_a_name_finds_its_page(seed):
    pages = make_pages(make_world(seed, "test", people=200, places=36), seed)
    search = WorldSearch(pages.world.passages, topk=1)
    for name in [*pages.fact_texts, *pages.references.values()]:
        [[page]] = search.results([name])
        assert page.contents.startswith(f'"{name}"\n')


def test_a_seed_draws_the_same_pages_and_another_one_others():
    assert make_pages(WORLD, 1) == make_pages(WORLD, 1) != make_pages(WORLD, 2)
    assert fresh_pages(random.Random(1)) == fresh_pages(random.Random(1))


def test_the_data_has_pages_of_both_worlds_and_no_comparisons():
    data = pages_data(0, train=30, val=12)
    ids = [passage["id"] for passage in data.passages]
    assert len(set(ids)) == len(ids) and {id.partition("-")[0] for id in ids} == {"train", "test"}
    for questions, count in ((data.train, 30), (data.val, 12)):
        kinds = [question.kind for question in questions]
        assert len(kinds) == count and {kinds.count(kind) for kind in set(kinds)} == {count // 3}
        assert "comparison" not in kinds and "both" in kinds
