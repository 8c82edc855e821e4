from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_server.errors import UserError
from retrieval_server.folder import passages
from retrieval_server.folder.passages import Passage, PassageStore, PassageWriter


def write(path, rows):
    with PassageWriter(path) as writer:
        for line, row in enumerate(rows, start=1):
            writer.add(row, line)
    return writer


def test_rows_come_back_in_order_across_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "BATCH_ROWS", 3)
    rows = [Passage(str(i), f"text {i} é 中") for i in range(8)]
    write(tmp_path / "p.arrow", rows)
    store = PassageStore(tmp_path / "p.arrow")
    assert [store[i] for i in range(len(store))] == rows
    assert list(store.iter_contents()) == [row.contents for row in rows]
    for start, stop in [(2, 7), (0, 3), (3, 3), (5, 99), (8, 9)]:
        assert list(store.iter_contents(start, stop)) == [row.contents for row in rows[start:stop]]
    for outside in (-1, 8):
        with pytest.raises(IndexError):
            store[outside]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), unique=True, max_size=12),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), max_size=6),
    st.randoms(use_true_random=False),
)
def test_documents_are_found_by_their_ids_whatever_these_are(ids, others, random):
    rows = [Passage(key, f"about {key}") for key in ids]
    queries = [*ids, *ids[:2], *others]
    random.shuffle(queries)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(passages, "BATCH_ROWS", 3)
        write(Path(folder) / "p.arrow", rows)
        results = PassageStore(Path(folder) / "p.arrow").find(queries)
    assert results == [Passage(key, f"about {key}") if key in ids else None for key in queries]


def test_addresses_are_kept_and_indexes_without_them_still_open(tmp_path):
    rows = [Passage("1", "x", "https://a.example/1"), Passage("2", "y")]
    write(tmp_path / "p.arrow", rows)
    assert list(PassageStore(tmp_path / "p.arrow")) == rows
    before = pa.schema([("id", pa.string()), ("contents", pa.string())])
    with pa.ipc.new_file(str(tmp_path / "old.arrow"), before) as writer:
        writer.write_batch(pa.record_batch([["1"], ["x"]], schema=before))
    assert list(PassageStore(tmp_path / "old.arrow")) == [Passage("1", "x")]


def test_large_texts_end_a_batch_early(tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "BATCH_BYTES", 100)
    rows = [Passage(str(i), "x" * 90) for i in range(5)]
    write(tmp_path / "p.arrow", rows)
    store = PassageStore(tmp_path / "p.arrow")
    assert len(store._columns) > 1 and store[4] == rows[4]


def test_the_hash_names_the_rows_and_their_borders(tmp_path):
    def digest(*rows):
        return write(tmp_path / "p.arrow", rows).sha256

    assert digest(Passage("a", "bc")) == digest(Passage("a", "bc"))
    others = {digest(Passage("a", "bc")), digest(Passage("ab", "c")), digest(Passage("a", "bd")), digest()}
    assert len(others) == 4


@given(st.lists(st.text(max_size=3), max_size=30))
def test_duplicates_are_found_exactly_when_there_are_some(tmp_path_factory, ids):
    writer = write(tmp_path_factory.mktemp("ids") / "p.arrow", [Passage(key, "x") for key in ids])
    if len(set(ids)) == len(ids):
        writer.refuse_duplicate_ids("place {}".format)
    else:
        with pytest.raises(UserError):
            writer.refuse_duplicate_ids("place {}".format)


def test_a_hash_collision_is_not_a_duplicate(tmp_path):
    writer = write(tmp_path / "p.arrow", [Passage("a", "x"), Passage("b", "x")])
    writer._id_hashes[1] = writer._id_hashes[0]
    writer.refuse_duplicate_ids("place {}".format)


def test_a_file_that_is_not_arrow_is_refused(tmp_path):
    (tmp_path / "p.arrow").write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="not a readable Arrow file"):
        PassageStore(tmp_path / "p.arrow")


def test_pages_are_handed_back_and_the_text_stays_readable(tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "RELEASE_AFTER", 3)
    rows = [Passage(str(i), f"text {i}") for i in range(8)]
    write(tmp_path / "p.arrow", rows)
    store = PassageStore(tmp_path / "p.arrow")
    held, store._map = store._columns[0][1][0], Mock(wraps=store._map)
    assert list(store) == rows and held.as_py() == "text 0"
    assert store._map.madvise.call_count == 2, "after three passages, and after three more"


def test_places_are_kept_where_rows_were_left_out(tmp_path):
    with PassageWriter(tmp_path / "p.arrow") as writer:
        for place, key in [(3, "a"), (4, "b"), (9, "c"), (10, "a")]:
            writer.add(Passage(key, "x"), place)
    with pytest.raises(UserError, match="^place 3 and place 10 have the same id 'a'"):
        writer.refuse_duplicate_ids("place {}".format)
