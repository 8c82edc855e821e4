"""A parquet file that unpacks to too much is refused before its rows are read, whoever reads them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rag_r1.corpus.reader import Corpus
from rag_r1.data.files.row_files import open_rows
from rag_r1.data.rows import QuestionRow, read_rows, write_rows
from rag_r1.data.sft_rows import COLUMNS, read_sft_rows
from rag_r1.io.errors import DataError
from rag_r1.rollouts.requests import _is_data_set
from rag_r1.sandbox import parquet_trial
from rag_r1.sandbox.parquet import check_parquet
from rag_r1.training.preflight.parquet import column_problems

#: A text of 520 KiB that every row has: parquet stores it once.
HUGE, ROWS = "x" * (520 << 10), 1024
NAMED = r"row group 0, column '{}': .*: leave these rows or columns out"


def read(path: Path) -> list:
    with open_rows(path, ("question", "answer"), ()) as (_, rows):
        return list(rows)


def repeated(text: str) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array([text]))


def written(path: Path, **columns: pa.Array) -> Path:
    """A file of a kilobyte, whatever it unpacks to."""
    table = pa.table(columns)
    pq.write_table(table, path, store_schema=False, compression="zstd", dictionary_pagesize_limit=8 << 20)
    assert path.stat().st_size < 100_000
    return path


@pytest.mark.parametrize("is_dictionary", [False, True], ids=["plain", "with Arrow's schema"])
def test_a_text_counts_for_each_row_that_refers_to_it(tmp_path, monkeypatch, is_dictionary):
    monkeypatch.setattr(pa, "set_cpu_count", lambda count: None)
    monkeypatch.setattr(parquet_trial, "MAX_BATCH_BYTES", 1 << 20)
    path = tmp_path / "a.parquet"
    table = pa.table({"question": repeated("x" * 1100), "answer": repeated("a")})
    pq.write_table(table, path, store_schema=is_dictionary)
    assert pa.types.is_dictionary(pq.read_schema(path).field("question").type) == is_dictionary
    with pytest.raises(DataError, match="row group 0, column 'question': 1,024 rows .* than 1 MiB"):
        parquet_trial.try_out(str(path), ["question", "answer"], ROWS)


@pytest.mark.slow
def test_so_it_is_in_rows_and_a_data_set_and_its_preflight(tmp_path):
    path = written(tmp_path / "b.parquet", question=repeated(HUGE), answer=repeated("a"))
    with pytest.raises(DataError, match=r"b\.parquet: " + NAMED.format("question")):
        read(path)
    info = pa.StructArray.from_arrays([repeated("id"), repeated(HUGE)], ["id", "question"])
    model = pa.StructArray.from_arrays([repeated("rule")], ["style"])
    path = written(tmp_path / "a.parquet", extra_info=info, reward_model=model)
    with pytest.raises(DataError, match=NAMED.format("extra_info")):
        list(read_rows(path))
    with pytest.raises(DataError, match=NAMED.format("extra_info")):
        _is_data_set(path)
    [problem] = column_problems(str(path))
    assert "row group 0, column 'extra_info'" in problem.what and "leave these" in problem.remedy


@pytest.mark.slow
def test_so_it_is_in_sft_rows_and_in_a_corpus(tmp_path):
    others = {name: repeated("a") for name in COLUMNS if name != "question"}
    with pytest.raises(DataError, match=NAMED.format("question")):
        list(read_sft_rows(written(tmp_path / "a.parquet", question=repeated(HUGE), **others)))
    path = written(tmp_path / "b.parquet", id=repeated("1"), contents=repeated(HUGE))
    with pytest.raises(DataError, match=NAMED.format("contents")):
        list(Corpus([path]).rows())


def many_nulls() -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 5_000_000], pa.int32()), pa.nulls(5_000_000, pa.string()))


def test_a_list_of_millions_of_nulls_is_refused(tmp_path):
    path = written(tmp_path / "a.parquet", question=pa.array(["q"]), answer=many_nulls())
    with pytest.raises(DataError, match=r"column 'answer': 1 rows have more than 2,000,000 values"):
        check_parquet(path, ["question", "answer"])
    check_parquet(path, ["question"])  # a column that is not read does no harm
    with pytest.raises(DataError, match=r"a\.parquet: " + NAMED.format("answer")):
        read(path)


def test_the_values_of_an_extension_type_are_counted(tmp_path):
    storage = pa.FixedSizeListArray.from_arrays(pa.nulls(5_000_000, pa.int8()), 5_000_000)
    tensor = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int8(), [5_000_000]), storage)
    pq.write_table(pa.table({"question": tensor}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="1 rows have more than 2,000,000 values"):
        check_parquet(tmp_path / "a.parquet", ["question"])


def test_very_many_columns_are_refused(tmp_path):
    pq.write_table(pa.table({f"c{i}": [0] for i in range(10_001)}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: it has 10,001 columns"):
        check_parquet(tmp_path / "a.parquet", ["question"])


def test_what_is_no_parquet_is_left_to_its_reader(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no PAR1")
    check_parquet(tmp_path / "a.parquet", ["question"])
    with pytest.raises(DataError, match="not a parquet file"):
        read(tmp_path / "a.parquet")


def test_a_text_that_is_not_utf8_is_told_with_its_file(tmp_path):
    text = pa.StringArray.from_buffers(1, pa.array([0, 4], "int32").buffers()[1], pa.py_buffer(b"caf\xe9"))
    path = written(tmp_path / "a.parquet", data_source=text, **dict.fromkeys(COLUMNS, text))
    for read_any in (read_rows, read_sft_rows):
        with pytest.raises(DataError, match=r"a\.parquet.*utf-8"):
            list(read_any(path))


def test_an_honest_file_is_read_and_a_file_in_its_place_is_checked_again(tmp_path):
    path = tmp_path / "a.parquet"
    row = QuestionRow("Who?", ("Ada",), ({"role": "user", "content": "Who?"},), "1", "train", "s", "p", 0)
    write_rows(path, [row])
    assert [QuestionRow.from_row(raw) for raw in read_rows(path)] == [row]
    written(path, extra_info=many_nulls())
    with pytest.raises(DataError, match=NAMED.format("extra_info")):
        list(read_rows(path))
