"""The demo's invented world: facts, questions, splits, files."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from rag_r1.demo import names, world
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.world.__main__ import main


def test_the_same_seed_gives_the_same_world_and_another_seed_other_facts():
    first, same, other = (world.demo_data(seed, train=40, val=40) for seed in (3, 3, 4))
    assert first == same and first.passages != other.passages


PLACES = [(names.STEM, second) for second in (names.TOWN, names.RIVER, names.COMPANY)]


@pytest.mark.parametrize(("first", "second"), [(names.FIRST, names.LAST), *PLACES])
def test_splits_share_no_name_and_training_knows_every_word(first, second):
    train, test = (set(names.names(first, second, split)) for split in ("train", "test"))
    assert test and not train & test
    assert len(train) + len(test) == len(first) * len(second)
    assert {word for name in train for word in name.split()} == {*first, *second}


def test_no_test_entity_occurs_in_the_training_world():
    data = world.demo_data(0)
    train = " ".join(p["contents"] for p in data.passages if p["id"].startswith("train"))
    lookups = [lookup for question in data.val for lookup in question.lookups]
    entities = {name for lookup in lookups for name in (lookup.entity, lookup.value)}
    assert len(entities) > 100
    assert not [name for name in entities if name not in names.YEARS and name in train]


def test_every_fact_of_a_question_stands_in_the_first_passage_that_a_search_for_it_finds():
    data = world.demo_data(0, train=400)
    search = WorldSearch(data.passages)
    for question in data.train + data.val:
        for lookup in question.lookups:
            (documents,) = search.results([lookup.entity])
            assert documents[0].title == f'"{lookup.entity}"' and lookup.value in documents[0].text


def test_gold_follows_from_the_facts():
    for question in world.demo_data(1, train=400, val=160).train:
        first, last = question.lookups[0], question.lookups[-1]
        if question.kind in ("one_hop", "bridge"):
            assert question.gold == last.value
            assert question.kind == "one_hop" or last.entity == first.value
        elif question.kind == "both":
            assert question.gold == f"{first.value} and {last.value}"
        else:
            assert question.gold == (first if first.value < last.value else last).entity


def test_kinds_come_in_equal_shares_and_questions_do_not_repeat():
    questions = world.demo_data(0).train
    assert {sum(q.kind == kind for q in questions) for kind in world.KINDS} == {len(questions) // 4}
    assert len({q.text for q in questions}) == len({q.id for q in questions}) == len(questions)


@pytest.mark.slow
def test_a_world_too_small_says_so():
    small = world.make_world(0, "train", people=20, places=10, words=12)
    with pytest.raises(ValueError, match="different questions"):
        world.make_questions(small, 5000, 0)
    with pytest.raises(ValueError, match="names"):
        world.make_world(0, "test", people=20, places=500)


def test_files_hold_the_corpus_and_verls_rows(tmp_path):
    protocol = world.demo_protocol("rag_r1_mq")
    data = world.write_demo(tmp_path, protocol, seed=0, train=20, val=8)
    passages = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    assert passages == list(data.passages)
    assert len({passage["id"] for passage in passages}) == len(passages)
    rows = pq.read_table(tmp_path / "val.parquet").to_pylist()
    assert [row["extra_info"]["index"] for row in rows] == list(range(8))
    for row, question in zip(rows, data.val, strict=True):
        assert row["prompt"] == protocol.messages(question.text)
        assert row["data_source"] == f"demo/{question.kind}" and row["extra_info"]["kind"] == question.kind
        assert row["reward_model"]["ground_truth"]["target"] == [question.gold]
        assert row["agent_name"] == "search_agent"


def test_a_protocol_in_a_file_has_the_prompt_of_the_demo(tmp_path):
    shipped = world.demo_protocol("rag_r1_mq")
    (tmp_path / "mine.yaml").write_text("extends: rag_r1_mq\nname: mine\n")
    assert world.demo_protocol(str(tmp_path / "mine.yaml")).user_prompt == shipped.user_prompt


def test_the_command_writes_the_same_files(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "a"), "--train", "0", "--val", "0"])
    main(["--out", str(tmp_path / "a"), "--train", "8", "--val", "4", "--seed", "5"])
    world.write_demo(tmp_path / "b", world.demo_protocol("rag_r1_mq"), seed=5, train=8, val=4)
    assert "8 training, 4 held-out" in capsys.readouterr().out
    for name in ("corpus.jsonl", "train.parquet", "val.parquet"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
