"""A repaired corpus: all passages, then the missing ones that were supplied, each with an id of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_r1.corpus.reader import Corpus, CorpusError
from rag_r1.corpus.repair import repair


def written(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def passage(own_id: str | None, title: str = "T", text: str = "text") -> dict:
    row = {"contents": f'"{title}"\n{text}'}
    return row if own_id is None else {"id": own_id, **row}


def repaired(folder: Path, corpus: list, supply: list, **more):
    return repair(
        Corpus([written(folder / "corpus.jsonl", corpus)]),
        Corpus([written(folder / "supply.jsonl", supply)], ids=False),
        folder / "out.jsonl",
        progress=False,
        **more,
    )


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text("utf-8").splitlines()]


def test_what_is_missing_and_supplied_is_added_and_nothing_else(tmp_path):
    corpus = [passage("1", "Ulm"), {"id": "2", "contents": "x", "url": "http://u"}]
    supply = [passage("9", "Nine"), passage("8", "Other"), passage("7", "rome"), passage("9", "Nine")]
    done = repaired(tmp_path, corpus, supply, ids=["9", "10"], titles=["Rome", "Paris"])
    assert rows(tmp_path) == [*corpus, passage("9", "Nine"), passage("7", "rome")]
    assert (done.passages, done.supplied, done.renamed) == (2, 2, 0)
    assert done.ids_left == {"10"} and done.titles_left == {"Paris"}


def test_an_id_that_is_taken_or_absent_becomes_a_new_one(tmp_path):
    corpus = [passage("1"), passage("supplied-4"), passage("supplied-x")]
    supply = [passage("1", "Rome", "a"), passage(None, "Rome", "b"), passage("supplied-5", "Rome", "c")]
    supply += [passage("5", "Rome", "d"), passage("5", "Rome", "e"), passage(None, "Rome", "b")]
    done = repaired(tmp_path, corpus, supply, titles=["Rome"])
    assert [row["id"] for row in rows(tmp_path)[3:]] == [
        "supplied-5",
        "supplied-6",
        "supplied-7",
        "5",
        "supplied-8",
    ]
    assert (done.supplied, done.renamed) == (5, 4)


ids = st.none() | st.sampled_from(["1", "2", "supplied-1", "supplied-2", "supplied-9"])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(["1", "2", "3", "supplied-1", "supplied-3"]), unique=True),
    st.lists(st.tuples(ids, st.sampled_from(["Ulm", "Rome"]), st.sampled_from("ab")), max_size=8),
)
def test_ids_stay_unique_and_every_wanted_text_is_there_once(tmp_path_factory, mine, supply):
    folder = tmp_path_factory.mktemp("repair")
    wanted = {own_id for own_id, _, _ in supply if own_id} - set(mine)
    given_rows = [passage(*one) for one in supply]
    done = repaired(
        folder, [passage(own_id, "Own") for own_id in mine], given_rows, ids=wanted, titles=["Rome"]
    )
    made = rows(folder)
    assert len({row["id"] for row in made}) == len(made) == done.passages + done.supplied
    assert [row["id"] for row in made[: len(mine)]] == mine
    taken = {one for one in supply if one[0] in wanted or one[1] == "Rome"}
    assert sorted(row["contents"] for row in made[len(mine) :]) == sorted(
        passage(*one)["contents"] for one in taken
    )


def test_a_second_repair_goes_on_counting(tmp_path):
    repaired(tmp_path, [passage("1")], [passage(None, "Rome", "a")], titles=["Rome"])
    first = rows(tmp_path)
    repaired(tmp_path, first, [passage(None, "Ulm", "b")], titles=["Ulm"])
    assert [row["id"] for row in rows(tmp_path)] == ["1", "supplied-1", "supplied-2"]


@pytest.mark.parametrize("where", ["corpus", "supply"])
def test_bad_rows_are_refused_or_left_out_and_the_old_file_stays(tmp_path, where):
    (tmp_path / "out.jsonl").write_text("old")
    files = {"corpus": [passage("1")], "supply": [passage("9", "Rome")]}
    files[where].insert(0, [])
    with pytest.raises(CorpusError, match=rf"{where}.jsonl, line 1.*--skip-bad-rows"):
        repaired(tmp_path, **files, titles=["Rome"])
    assert (tmp_path / "out.jsonl").read_text() == "old"
    done = repaired(tmp_path, **files, titles=["Rome"], skip_bad_rows=True)
    assert len(rows(tmp_path)) == 2 and done.bad.count == (where == "supply")
