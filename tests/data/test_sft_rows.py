"""SFT rows on disk: what is written comes back, and what is no row is named."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.data.sft_rows import Piece, SftRow, read_sft_rows, write_sft_rows
from rag_r1.data.sft_tokens import protocol_of_rows
from rag_r1.io.errors import DataError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
pieces = st.lists(
    st.builds(Piece, texts, st.just(True), st.booleans()) | st.builds(Piece, texts, st.just(False))
)
messages = st.fixed_dictionaries({"role": texts, "content": texts})
rows = st.builds(
    SftRow,
    id=texts,
    question=texts,
    protocol=texts,
    kind=texts,
    messages=st.lists(messages, max_size=3).map(tuple),
    pieces=pieces.map(lambda pieces: (*pieces, Piece("target", True, True))),
    context_tokens=st.integers(0, 9999),
    target_tokens=st.integers(0, 9999),
)
ROW = SftRow(
    "made/1", "q", "rag_r1_mq", "kind", ({"role": "user", "content": "q"},), (Piece("a", True, True),)
)


@given(st.lists(rows, max_size=3))
def test_what_is_written_is_read_back(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("rows") / "train.parquet"
    write_sft_rows(path, written)
    assert list(read_sft_rows(path)) == written


def test_a_file_that_is_missing_or_is_another_is_named_with_the_remedy(tmp_path):
    with pytest.raises(DataError, match="none.parquet: there is no such file.*sft-data"):
        list(read_sft_rows(tmp_path / "none.parquet"))
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(DataError, match="text.parquet: is not a parquet file"):
        list(read_sft_rows(tmp_path / "text.parquet"))
    pq.write_table(pa.table({"prompt": ["a"]}), tmp_path / "rl.parquet")
    with pytest.raises(DataError, match="rl.parquet: has no column id, question"):
        list(read_sft_rows(tmp_path / "rl.parquet"))


def test_a_row_whose_observation_is_a_target_is_refused_with_its_file(tmp_path):
    write_sft_rows(tmp_path / "rows.parquet", [ROW])
    table = pq.read_table(tmp_path / "rows.parquet")
    spoilt = table.to_pylist()
    spoilt[0]["pieces"][0]["generated"] = False
    pq.write_table(pa.Table.from_pylist(spoilt, table.schema), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="rows.parquet: an observation is marked as a target"):
        list(read_sft_rows(tmp_path / "rows.parquet"))


@pytest.mark.parametrize("column", ["pieces", "messages", "question", "protocol"])
def test_a_row_that_lacks_a_text_is_refused(column):
    row = ROW.to_row()
    if column == "pieces":
        row["pieces"].append({"text": None, "generated": False, "trained": False})
    else:
        row[column] = [{"role": "user", "content": None}] if column == "messages" else None
    with pytest.raises(DataError, match="the row 'made/1' is not an SFT row .*a text is missing"):
        SftRow.from_row(row)


def test_the_protocol_is_the_one_that_all_rows_name():
    assert protocol_of_rows([ROW], None).name == "rag_r1_mq"
    with pytest.raises(DataError, match="data.protocol is 'rag_r1_sq'"):
        protocol_of_rows([ROW], "rag_r1_sq")
    with pytest.raises(DataError, match="data.protocol: "):
        protocol_of_rows([ROW], "no_such_protocol")
