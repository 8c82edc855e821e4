"""Rows of the data sets: what is written comes back, and whatever else a file holds can be read."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.data.row_schema import SOURCE_METADATA
from rag_r1.data.rows import (
    ROW_GROUP,
    QuestionRow,
    RowWriter,
    read_rows,
    row_fault,
    usable_prompt,
    write_rows,
)
from rag_r1.io.errors import DataError

MESSAGES = ({"role": "system", "content": "Search."}, {"role": "user", "content": "Who?"})
ROW = QuestionRow(
    "Who?",
    golds=("Ada", "A. L."),
    prompt=MESSAGES,
    id="made/train/1",
    split="train",
    data_source="made",
    protocol="rag_r1_mq",
    index=0,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
golds = texts.filter(str.strip)
messages = st.fixed_dictionaries({"role": texts, "content": texts})
rows = st.builds(
    QuestionRow,
    question=texts,
    golds=st.lists(golds, max_size=3).map(tuple),
    prompt=st.lists(messages, max_size=3).map(tuple),
    id=texts,
    split=texts.filter(bool),
    data_source=texts,
    protocol=texts,
    index=st.none() | st.integers(-(2**63), 2**63 - 1),
    ability=texts,
    metadata=st.fixed_dictionaries(
        {}, optional={"kind": texts, "hops": st.integers(0, 9), "of": st.lists(texts, min_size=1, max_size=2)}
    ),
)


@given(st.lists(rows, min_size=1, max_size=4))
def test_what_is_written_is_what_is_read(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("rows") / "train.parquet"
    write_rows(path, written)
    assert [QuestionRow.from_row(row) for row in read_rows(path)] == written
    # As pandas, and so veRL's non-tensor batch, gives them: lists are numpy arrays.
    frame = pq.read_table(path).to_pandas()
    again = [QuestionRow.from_row(row) for row in frame.to_dict("records")]
    assert [row.golds for row in again] == [row.golds for row in written]
    assert [row.prompt for row in again] == [row.prompt for row in written]


def test_every_file_without_metadata_has_one_schema_and_the_same_rows_give_the_same_bytes(tmp_path: Path):
    for name, rows_ in (("none", []), ("one", [ROW]), ("same", [ROW])):
        write_rows(tmp_path / name, rows_)
    assert pq.read_schema(tmp_path / "none") == pq.read_schema(tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "same").read_bytes()
    info = pq.read_schema(tmp_path / "one").field("extra_info").type
    assert [field.name for field in info] == ["id", "question", "index", "split", "protocol"]


@pytest.mark.parametrize("other", [3, ["hard"], {"of": "x"}])
def test_values_that_one_file_cannot_have_together_are_named_by_their_key(tmp_path: Path, other):
    rows_ = [replace(ROW, metadata={"hops": 2, "level": level}) for level in ("easy", other)]
    with pytest.raises(DataError, match=r"extra_info\.level has values of several types"):
        write_rows(tmp_path / "train.parquet", rows_)
    assert not list(tmp_path.iterdir())


def test_rows_that_are_written_one_by_one_are_those_of_a_list_in_one_schema(tmp_path: Path):
    plain = [replace(ROW, index=index, id=f"made/train/{index}") for index in range(ROW_GROUP + 3)]
    with RowWriter(tmp_path / "plain", metadata={}) as writer:
        for row in plain:
            writer.add(row)
    assert writer.count == len(plain)
    write_rows(tmp_path / "list", plain)
    assert pq.read_table(tmp_path / "plain").equals(pq.read_table(tmp_path / "list"))
    assert pq.ParquetFile(tmp_path / "plain").num_row_groups == 2
    values = {"hops": 2, "supporting_titles": ["A", "B"], "part_answers": [["x"], ["y", "z"]]}
    for name, metadata in (("all", values), ("none", {}), ("again", values)):
        with RowWriter(tmp_path / name) as writer:
            writer.add(replace(ROW, metadata=metadata))
    assert pq.read_schema(tmp_path / "all") == pq.read_schema(tmp_path / "none")
    assert (tmp_path / "all").read_bytes() == (tmp_path / "again").read_bytes()
    [read] = map(QuestionRow.from_row, read_rows(tmp_path / "all"))
    assert read == replace(ROW, metadata=values) and set(values) < set(SOURCE_METADATA)


def test_an_error_while_writing_leaves_the_file_of_before_and_names_the_row(tmp_path: Path):
    (path := tmp_path / "train.parquet").write_bytes(b"before")
    message = "row made/train/1: undeclared metadata colour"
    with pytest.raises(ValueError, match=message), RowWriter(path) as writer:
        writer.add(replace(ROW, metadata={"colour": "red"}))
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("train.parquet", b"before")]


def test_the_columns_are_verls():
    assert ROW.to_row() == {
        "data_source": "made",
        "prompt": list(MESSAGES),
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada", "A. L."]}},
        "extra_info": {
            "id": "made/train/1",
            "question": "Who?",
            "index": 0,
            "split": "train",
            "protocol": "rag_r1_mq",
        },
        "agent_name": "search_agent",
    }


def test_verls_batch_is_read_as_the_file_is():
    row = ROW.to_row()
    batch = {**row, "raw_prompt": np.array(row.pop("prompt"), dtype=object), "uid": "u"}
    del batch["prompt"]
    batch["reward_model"] = {"ground_truth": {"target": np.array(["Ada", "A. L."], dtype=object)}}
    batch["extra_info"] = {**row["extra_info"], "index": np.int64(0)}
    assert QuestionRow.from_row(batch) == ROW
    assert QuestionRow.from_row({"uid": "u"}).id == "u"


KEYS = "question id split target ground_truth role content index".split()
COLUMNS = "prompt raw_prompt data_source reward_model extra_info uid".split()
arrays = st.just(np.array(["x", "y"], dtype=object))
cells = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(COLUMNS), cells))
def test_any_row_can_be_read(row):
    read = QuestionRow.from_row(row)
    if row_fault(row) is None:
        assert read.question.strip() and read.golds
    assert isinstance(read.question, str) and isinstance(read.id, str) and read.split
    assert all(isinstance(gold, str) and gold.strip() for gold in read.golds)
    assert read.prompt == () or usable_prompt(list(read.prompt))


def test_a_row_with_parts_missing_has_the_others():
    assert QuestionRow.from_row({}) == QuestionRow("", (), ability="")
    row = {"extra_info": {"question": "Who?", "split": None, "kind": None}, "reward_model": None}
    assert QuestionRow.from_row(row) == QuestionRow("Who?", (), ability="")


@pytest.mark.parametrize("truth", ["x", ["x"], {"target": "x"}, {"target": np.array(["x"], dtype=object)}])
def test_a_useful_row_has_no_fault_in_whatever_form_its_golds_are(truth):
    row = {"extra_info": {"question": "Who?"}, "reward_model": {"ground_truth": truth}}
    assert row_fault(row) is None and QuestionRow.from_row(row).golds == ("x",)


@pytest.mark.parametrize("question", [None, "", " ", 5, math.nan])
def test_a_row_without_a_question_is_told(question):
    row = {**ROW.to_row(), "extra_info": {"question": question}}
    assert row_fault(row) == row_fault({}) == "extra_info.question is empty"


@pytest.mark.parametrize(
    "truth",
    [
        None,
        "",
        [],
        {},
        {"target": None},
        {"target": []},
        {"target": [" ", None]},
        {"target": {"aliases": ["x"]}},
        {"text": "x"},
    ],
)
def test_a_row_without_golds_is_told(truth):
    row = {**ROW.to_row(), "reward_model": {"ground_truth": truth}}
    assert row_fault(row) == "reward_model.ground_truth.target is empty"


@pytest.mark.parametrize(
    ("target", "golds"), [(5, ("5",)), ([5], ("5",)), ([["a"]], ("a",)), (["x", None], ("x",))]
)
def test_a_row_has_no_fault_if_its_golds_can_be_read(target, golds):
    row = {**ROW.to_row(), "reward_model": {"ground_truth": {"target": target}}}
    assert row_fault(row) is None and QuestionRow.from_row(row).golds == golds


@pytest.mark.parametrize(
    ("column", "fault"),
    [("extra_info", "extra_info.question"), ("reward_model", "reward_model.ground_truth.target")],
)
@pytest.mark.parametrize("value", [None, '{"question": "Who?"}', 5, ["x"], np.array(["x"], dtype=object)])
def test_a_row_with_a_column_of_another_type_is_told(column, fault, value):
    assert row_fault({**ROW.to_row(), column: value}) == f"{fault} is empty"


def test_a_file_of_ones_own_may_leave_columns_out(tmp_path: Path):
    row = {name: ROW.to_row()[name] for name in ("prompt", "extra_info", "reward_model")}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "own.parquet")
    [read] = map(QuestionRow.from_row, read_rows(tmp_path / "own.parquet"))
    assert (read.question, read.golds, read.prompt, read.data_source) == ("Who?", ROW.golds, MESSAGES, "")


@pytest.mark.parametrize("empty", [math.nan, np.float32("nan"), np.array([math.nan, None], object)])
def test_an_empty_cell_of_pandas_is_no_gold_answer_and_no_text(empty):
    """pandas writes a missing text as NaN, which as a text is the word nan."""
    row = ROW.to_row() | {"reward_model": {"ground_truth": {"target": empty}}, "data_source": empty}
    assert "target is empty" in row_fault(row)
    read = QuestionRow.from_row(row)
    assert (read.golds, read.data_source) == ((), "")
