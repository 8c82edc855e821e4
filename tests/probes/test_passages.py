"""The file of passages: read only if it is one; which passages a question is shown, and which it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.data.evidence import GoldEvidence, title_key
from rag_r1.io.errors import DataError
from rag_r1.probes.passages import Passages, read_passages
from rag_r1.protocols import Document

FILE = {
    "fingerprint": "f",
    "place": [0, 9, 3],
    "done": True,
    "by_id": [["1", '"Rome"\na city']],
    "by_title": {"tiber": [["2", '"Tiber"\na river'], ["3", '"Tiber"\n406 km']]},
    "drawn": [[-9, "4", "x"], [-(2**64), "5", "y"], [-1, "6", "z"]],
    "bad": [0, []],
}


def written(folder: Path, value: object) -> Path:
    path = folder / "passages.json"
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return path


def test_a_file_has_passages_by_id_by_page_and_random_ones_in_the_order_of_their_numbers(tmp_path):
    passages = read_passages(written(tmp_path, FILE))
    assert passages.by_id == {"1": Document("1", '"Rome"\na city')}
    assert [item.id for item in passages.by_title["tiber"]] == ["2", "3"]
    assert [item.id for item in passages.random] == ["6", "4", "5"]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (json.dumps(FILE).encode()[:70], "not a file of passages"),
        (b"", "not a file of passages"),
        (b"\xff\xfe", "not a file of passages"),
        (b"[" * 100_000, "not a file of passages"),
        (b"\x80\x04]\x94.", "not a file of passages"),
        ([FILE], "not a file of passages"),
        ({**FILE, "done": 1}, r"\(done: "),
        ({**FILE, "by_id": [["1"]]}, r"\(by_id: "),
        ({**FILE, "by_id": [["1", {"contents": "x"}]]}, r"\(by_id: "),
        ({**FILE, "by_title": {"\x1b[2J": [[1, "x"]]}}, r"\(by_title: [^\x1b]*$"),
        ({**FILE, "drawn": [["-9", "4", "x"]]}, r"\(drawn: "),
        ({key: value for key, value in FILE.items() if key != "drawn"}, r"\(drawn: "),
        ({**FILE, "done": False}, "interrupted or refused: run the command"),
    ],
)
def test_a_file_that_is_broken_or_of_another_shape_is_refused_by_its_name(tmp_path, value, what):
    path = written(tmp_path, value)
    with pytest.raises(DataError, match=what) as refused:
        read_passages(path)
    assert str(refused.value).startswith(str(path))


def test_a_file_of_many_passages_is_read(tmp_path):
    path = written(tmp_path, {**FILE, "place": [0] * 600_000})  # as many values as 200,000 passages
    assert read_passages(path) == read_passages(written(tmp_path, FILE))


@pytest.mark.parametrize("name", ["missing.json", "", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused_with_the_command_that_makes_it(tmp_path, name):
    with pytest.raises(DataError, match="cannot be read .*: make it with `rag-r1 probe-passages"):
        read_passages(tmp_path / name)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(key=st.sampled_from(sorted(FILE)), value=JSON)
def test_whatever_stands_under_a_key_the_file_is_read_or_refused(tmp_path_factory, key, value):
    path = written(tmp_path_factory.mktemp("hostile"), {**FILE, key: value})
    try:
        read = read_passages(path)
    except DataError:
        return
    expected = [
        *read.by_id.values(),
        *(item for page in read.by_title.values() for item in page),
        *read.random,
    ]
    assert all(isinstance(item.id, str) and isinstance(item.contents, str) for item in expected)


def passage(number: int) -> Document:
    return Document(str(number), f'"Page {number // 3}"\ntext {number}')


def stored(*numbers: int, random: int = 0) -> Passages:
    """Some passages by id and by page, and the first `random` as random ones."""
    pages: dict[str, list[Document]] = {}
    for number in numbers:
        pages.setdefault(f"page {number // 3}", []).append(passage(number))
    return Passages(
        {str(number): passage(number) for number in numbers}, pages, list(map(passage, range(random)))
    )


def test_the_first_passage_of_each_page_is_one_with_the_answer():
    both = GoldEvidence.of({"supporting_titles": ["page 3", "PAGE_7"]})
    passages = stored(9, 10, 11, 21, 22, 23)
    assert [item.id for item in passages.gold_passages(both, ["text 22"])][:2] == ["9", "22"]
    assert sorted(item.id for item in passages.gold_passages(both, [])) == ["10", "11", "21", "22", "23", "9"]


def test_passages_that_are_named_by_id_are_these_and_no_others():
    passages = stored(3, 4, 5, 9)
    named = GoldEvidence.of({"supporting_ids": ["5", "9"], "supporting_titles": ["Page 1"]})
    assert [item.id for item in passages.gold_passages(named, [])] == ["5", "9"]
    missing = GoldEvidence.of({"supporting_ids": ["5", "no such"], "supporting_titles": ["Page 1"]})
    assert [item.id for item in passages.gold_passages(missing, [])] == ["3", "4", "5"], "then by title"


def test_a_question_of_which_one_page_is_missing_has_no_gold_passages():
    assert stored(9).gold_passages(GoldEvidence.of({"supporting_titles": ["Page 3", "Nowhere"]}), []) == ()
    assert Passages().gold_passages(GoldEvidence(), []) == ()


def test_a_question_is_shown_topk_gold_passages_or_one_of_each_page():
    passages = stored(0, 1, 2, 3, 6)
    one_page, three_pages = ["Page 0"], ["Page 0", "Page 1", "Page 2"]
    for titles, topk, expected in ((one_page, 2, ["0", "1"]), (three_pages, 1, ["0", "3", "6"])):
        evidence = passages.evidence({"supporting_titles": titles}, [], topk)
        assert [item.id for item in evidence.passages] == expected
        assert evidence.titles == {title_key(title) for title in titles}
    lacking = passages.evidence({"supporting_titles": ["Page 0", "Page 5"]}, [], 2)
    assert lacking.passages == () and lacking.titles == {"page 0", "page 5"}


@given(random=st.integers(0, 30), ids=st.sets(st.integers(0, 40)), pages=st.sets(st.integers(0, 14)))
def test_the_random_passages_of_a_question_are_all_but_its_gold_ones_and_their_pages(random, ids, pages):
    gold = GoldEvidence(frozenset(map(str, ids)), frozenset(f"page {page}" for page in pages))
    passages = stored(random=random)
    assert list(passages.distractors(gold)) == [item for item in passages.random if not gold.holds(item)]
