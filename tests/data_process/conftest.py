"""What the tests of the data's scripts share: the real data, and files of rows written and read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("RAG_R1_DATA") or ROOT.parent / "shared" / "data")
#: The numbers of a set, which add up.
COUNTS = ("read", "malformed", "duplicates", "overlap_with_test", "written")


def needs_data(folder: Path) -> pytest.MarkDecorator:
    """Leaves a test out if a folder of the real data is not there."""
    reason = f"left out: {folder.name} is not here (set RAG_R1_DATA to the folder of the real data)"
    return pytest.mark.skipif(not folder.is_dir(), reason=reason)


def write_lines(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_split(folder: Path, split: str = "train") -> list[dict]:
    return pq.read_table(folder / f"{split}.parquet").to_pylist()


def read_summary(folder: Path) -> dict:
    return json.loads((folder / "data_summary.json").read_text())
