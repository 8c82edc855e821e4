"""The comparison of SFT through veRL with the demo's own: the data that it makes, and its table."""

from __future__ import annotations

import argparse
import json

import pytest

from benchmarks import sft_on_verl
from rag_r1.data.sft_rows import read_sft_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.trace_records import BATCH


def test_the_table_has_a_row_for_each_policy():
    figures = dict.fromkeys(sft_on_verl.COLUMNS, 0.5)
    lines = sft_on_verl.table({"warm": figures, "veRL": {**figures, "all": 0.25}})
    assert lines.splitlines()[0].startswith("| policy | one_hop | bridge |")
    assert "| veRL | 0.50 | 0.50 | 0.50 | 0.50 | 0.25 | 0.50 | 0.50 |" in lines


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["cut", pytest.param("whole", marks=pytest.mark.full)])
def test_every_trace_of_the_warm_start_is_in_the_data(layout, tmp_path):
    args = argparse.Namespace(protocol="rag_r1_mq", mix="mixed", batches=2, seed=0, layout=layout)
    data = sft_on_verl.sft_data(tmp_path, policy_path("rag_r1_mq"), args)
    rows = list(read_sft_rows(data / "train.parquet"))
    summary = json.loads((data / "sft_summary.json").read_text())
    repeated = summary["left_out"].get("repeated", {"count": 0})["count"]
    assert set(summary["left_out"]) <= {"repeated"}
    traces = {row.id.rpartition("/")[0] for row in rows}
    assert len(traces) == 2 * BATCH or repeated
    assert (len(rows) == 2 * BATCH - repeated) == (layout == "whole")
