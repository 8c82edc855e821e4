"""The data set that the recipes name: veRL's own, without the rows that would stop it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from verl.utils.dataset.rl_dataset import get_dataset_class

from rag_r1.data.rows import usable_prompt

pytestmark = pytest.mark.usefixtures("datasets_cache")
MESSAGES = [{"role": "user", "content": "Where was Ada born?"}]


def dataset(path: Path, prompts: list) -> object:
    """What veRL builds for these prompts from the recipes' `data.custom_cls`."""
    schema = pa.schema([("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))])
    pq.write_table(pa.Table.from_pylist([{"prompt": prompt} for prompt in prompts], schema), path)
    defaults = OmegaConf.load(Path(__file__).parents[2] / "recipes" / "rag_r1_defaults.yaml")
    config = OmegaConf.create({"custom_cls": defaults.data.custom_cls, "cache_dir": str(path.parent)})
    config.filter_overlong_prompts = False
    return get_dataset_class(config)(str(path), tokenizer=None, config=config)


def test_rows_without_a_prompt_are_left_out_and_counted(tmp_path: Path, capsys):
    rows = dataset(tmp_path / "train.parquet", [MESSAGES, None, [], [{"role": "user"}], MESSAGES])
    assert len(rows) == 2
    assert [rows[i]["raw_prompt"] for i in range(2)] == [MESSAGES, MESSAGES]
    assert "left out 3 of 5 rows" in capsys.readouterr().out


def test_every_row_with_a_prompt_stays_in_its_place(tmp_path: Path):
    prompts = [[{"role": "user", "content": str(number)}] for number in range(100)]
    rows = dataset(tmp_path / "train.parquet", prompts)
    assert [rows[i]["raw_prompt"] for i in range(len(rows))] == prompts


def test_a_usable_prompt_is_a_list_of_messages_with_role_and_text():
    assert usable_prompt(MESSAGES)
    assert not any(usable_prompt(bad) for bad in (None, [], "text", [None], [{"content": "x"}]))
