"""A repaired corpus: all passages, then the missing ones that were supplied, each with an id of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.corpus.reader import Corpus
from rag_r1.corpus.repair.repaired_corpus import repair
from rag_r1.io.errors import DataError
from tests.corpus.row_files import rows_of, written


def passage(passage_id: str | None, title: str = "T", text: str = "text") -> dict:
    row = {"contents": f'"{title}"\n{text}'}
    return row if passage_id is None else {"id": passage_id, **row}


def repaired(folder: Path, corpus: list, supply: list, **more):
    return repair(
        Corpus([written(folder / "corpus.jsonl", corpus)]),
        Corpus([written(folder / "supply.jsonl", supply)], ids=False),
        folder / "out.jsonl",
        progress=False,
        **more,
    )


def test_what_is_missing_and_supplied_is_added_and_nothing_else(tmp_path):
    corpus = [passage("1", "Ulm"), {"id": "2", "contents": "x", "url": "http://u"}]
    supply = [passage("9", "Nine"), passage("8", "Other"), passage("7", "rome"), passage("9", "Nine")]
    done = repaired(tmp_path, corpus, supply, ids=["9", "10"], titles=["Rome", "Paris"])
    assert rows_of(tmp_path / "out.jsonl") == [*corpus, passage("9", "Nine"), passage("7", "rome")]
    assert (done.passages, done.supplied, done.renamed) == (2, 2, 0)
    assert done.ids_left == {"10"} and done.titles_left == {"Paris"}


NEW_IDS = ["supplied-5", "supplied-6", "supplied-7", "5", "supplied-8"]


def test_an_id_that_is_taken_or_absent_becomes_a_new_one(tmp_path):
    corpus = [passage("1"), passage("supplied-4"), passage("supplied-x")]
    supply = [passage("1", "Rome", "a"), passage(None, "Rome", "b"), passage("supplied-5", "Rome", "c")]
    supply += [passage("5", "Rome", "d"), passage("5", "Rome", "e"), passage(None, "Rome", "b")]
    done = repaired(tmp_path, corpus, supply, titles=["Rome"])
    assert [row["id"] for row in rows_of(tmp_path / "out.jsonl")[3:]] == NEW_IDS
    assert (done.supplied, done.renamed) == (5, 4)


ids = st.none() | st.sampled_from(["1", "2", "supplied-1", "supplied-2", "supplied-9"])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(["1", "2", "3", "supplied-1", "supplied-3"]), unique=True),
    st.lists(st.tuples(ids, st.sampled_from(["Ulm", "Rome"]), st.sampled_from("ab")), max_size=8),
)
def test_ids_stay_unique_and_every_wanted_text_is_there_once(tmp_path_factory, present, supply):
    folder = tmp_path_factory.mktemp("repair")
    wanted = {passage_id for passage_id, _, _ in supply if passage_id} - set(present)
    corpus, supplied = [passage(name, "Own") for name in present], [passage(*row) for row in supply]
    done = repaired(folder, corpus, supplied, ids=wanted, titles=["Rome"])
    rows = rows_of(folder / "out.jsonl")
    assert len({row["id"] for row in rows}) == len(rows) == done.passages + done.supplied
    assert [row["id"] for row in rows[: len(present)]] == present
    texts = {passage(*row)["contents"] for row in supply if row[0] in wanted or row[1] == "Rome"}
    assert {row["contents"] for row in rows[len(present) :]} == texts
    assert done.supplied == len({row for row in supply if row[0] in wanted or row[1] == "Rome"})


@pytest.mark.parametrize("name", ["corpus", "supply"])
def test_bad_rows_are_refused_or_left_out_and_the_old_file_stays(tmp_path, name):
    (tmp_path / "out.jsonl").write_text("old")
    files = {"corpus": [passage("1")], "supply": [passage("9", "Rome")]}
    files[name].insert(0, [])
    with pytest.raises(DataError, match=rf"{name}.jsonl, line 1.*--skip-bad-rows"):
        repaired(tmp_path, **files, titles=["Rome"])
    assert (tmp_path / "out.jsonl").read_text() == "old"
    done = repaired(tmp_path, **files, titles=["Rome"], skip_bad_rows=True)
    assert len(rows_of(tmp_path / "out.jsonl")) == 2 and done.bad.count == (name == "supply")
