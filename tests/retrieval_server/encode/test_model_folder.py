from __future__ import annotations

import shutil

import pytest

from retrieval_server.encode.model_folder import hash_model, read_folder_settings, resolve_model
from retrieval_server.errors import UserError


def test_both_spellings_of_a_pooling_configuration_are_read(make_bert):
    folder = make_bert("own", "cls")
    assert read_folder_settings(folder).pooling == "cls"
    (folder / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "mean"}')
    assert read_folder_settings(folder).pooling == "mean"


def test_the_hash_follows_weights_and_settings_but_not_the_readme(make_bert, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(make_bert("own", "cls"), folder)
    before = hash_model(folder)
    (folder / "README.md").write_text("words")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights again")
    assert hash_model(folder) == before
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert hash_model(folder) != before


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "justaword"])
def test_a_name_that_is_no_model_says_so(name):
    with pytest.raises(UserError, match="no such folder"):
        resolve_model(name)


def test_a_folder_without_a_model_says_so(tmp_path):
    with pytest.raises(UserError, match="not a model folder"):
        resolve_model(str(tmp_path))
