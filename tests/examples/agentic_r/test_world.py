"""The misleading world: each fact is stated once, and a near-duplicate without it is closer to the query."""

from __future__ import annotations

import random

import pytest

from examples.agentic_r.warm_start import protocol
from examples.agentic_r.world import (
    KINDS,
    TRAIN,
    WORDING,
    draw_questions,
    fresh_misleading_world,
    make_misleading_world,
    misleading_data,
    write_misleading_data,
)
from rag_r1.data.rows import read_rows
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world import make_world

WORLD = make_misleading_world(make_world(0, "train", people=40, places=10, words=20), 0)


def test_each_fact_is_stated_by_one_passage_and_no_near_duplicate_has_its_value():
    facts = WORLD.world.facts
    for relation in WORDING:
        for entity, value in facts[relation].items():
            stated = WORLD.stated[entity, relation]
            assert value in stated["contents"]
            (near,) = [p for p in WORLD.world.passages if p["id"] == f"{stated['id']}-near"]
            assert near["contents"].startswith(f'"{entity}"\n') and value not in near["contents"]
    assert len(WORLD.world.passages) == 2 * len(WORLD.stated) == len({p["id"] for p in WORLD.world.passages})


def test_a_search_by_shared_words_finds_near_duplicates_first():
    search = WorldSearch(WORLD.world.passages, topk=1)
    for entity, relation in WORLD.stated:
        [[first]] = search.results([entity])
        assert first.id.endswith("-near"), (entity, relation)


def test_a_persons_name_does_not_say_which_fact_is_asked_for():
    questions = draw_questions(WORLD.world, 60, 0)
    relations = [fact.relation for question in questions for fact in question.lookups]
    assert relations.count("birthplace") > 15 and relations.count("year") > 15
    assert {question.kind for question in questions} == set(KINDS)


def test_questions_are_different_and_have_their_answers_in_the_world():
    for question in draw_questions(WORLD.world, 60, 1):
        for fact in question.lookups:
            assert fact.value in WORLD.passage_of(fact)["contents"]
        values = [fact.value for fact in question.lookups]
        assert question.gold == (" and ".join(values) if question.kind == "both" else values[-1])
    with pytest.raises(ValueError, match="does not have 100 different questions"):
        draw_questions(make_world(0, "train", people=4, places=4, words=6), 100, 0)


def test_a_seed_draws_the_same_world_and_another_one_others():
    base = make_world(0, "train", people=20, places=10, words=12)
    assert make_misleading_world(base, 1) == make_misleading_world(base, 1) != make_misleading_world(base, 2)
    assert fresh_misleading_world(random.Random(1)) == fresh_misleading_world(random.Random(1))


@pytest.mark.slow
def test_the_files_keep_training_scored_and_held_out_questions_apart(tmp_path):
    write_misleading_data(tmp_path, protocol(), 0, scored=30, val=30)
    rows = {name: list(read_rows(tmp_path / f"{name}.parquet")) for name in ("train", "scored", "val")}
    assert {name: len(of) for name, of in rows.items()} == {"train": TRAIN, "scored": 30, "val": 30}
    texts = [row["prompt"][0]["content"] for of in rows.values() for row in of]
    assert len(set(texts)) == len(texts)
    _, train, test = misleading_data(0, TRAIN + 30, 30)
    names = [{entity for entity, _ in world.stated} for world in (train, test)]
    assert not names[0] & names[1]
    known = {p["id"] for world in (train, test) for p in world.world.passages}
    for row in (*rows["scored"], *rows["val"]):
        assert set(row["extra_info"]["supporting_ids"]) <= known
        assert len(row["extra_info"]["supporting_ids"]) == len(row["extra_info"]["step_answers"])
