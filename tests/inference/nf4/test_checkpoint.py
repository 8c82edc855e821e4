"""A checkpoint of adapters that cannot be read is named, whatever its files hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_r1.inference.nf4.checkpoint import SavedAdapters, read_adapters
from rag_r1.inference.nf4.export import _trained_config
from rag_r1.runs.errors import RunError

META = '{"r": 4, "lora_alpha": 8}'


@pytest.mark.parametrize("content", [b"", b"PK", b"no pickle", None])
@pytest.mark.parametrize("meta", [META, '{"r": Infinity, "lora_alpha": 8}', '{"r": 4}', "[]"])
def test_adapters_that_are_not_whole_and_facts_that_are_no_numbers_are_refused(tmp_path, meta, content):
    import torch

    (tmp_path / "lora_train_meta.json").write_text(meta)
    file = tmp_path / "model_world_size_1_rank_0.pt"
    torch.save([1], file) if content is None else file.write_bytes(content)
    with pytest.raises(RunError, match="cannot be read .*: give another checkpoint"):
        read_adapters(tmp_path)


@pytest.mark.parametrize("content", ["[]", "7", "{"])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, content: str):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunError, match="config.json cannot be read .*: give another checkpoint"):
        _trained_config(SavedAdapters({}, 4, 8, tmp_path))
