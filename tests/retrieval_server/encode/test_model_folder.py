from __future__ import annotations

import shutil
from unittest.mock import Mock

import pytest

from retrieval_server.encode import model_folder
from retrieval_server.encode.encoder import Encoder
from retrieval_server.encode.model_folder import (
    check_model,
    check_weights,
    hash_model,
    read_folder_settings,
    resolve_model,
)
from retrieval_server.encode.options import EncoderOptions
from retrieval_server.errors import UserError
from retrieval_server.serve.checks import _fetch_models
from retrieval_server.serve.options import ServeCommand


def test_both_spellings_of_a_pooling_configuration_are_read(make_bert):
    folder = make_bert("own", "cls")
    assert read_folder_settings(folder).pooling == "cls"
    (folder / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "mean"}')
    assert read_folder_settings(folder).pooling == "mean"


@pytest.mark.parametrize(
    "file, text, fault",
    [
        ("config_sentence_transformers.json", "[]", "prompts"),
        ("config_sentence_transformers.json", '{"prompts": ["query: "]}', "prompts"),
        ("config_sentence_transformers.json", '{"prompts": {"query": 5}}', "prompts"),
        ("1_Pooling/config.json", "[]", "not an object"),
    ],
)
def test_settings_of_another_form_are_refused_with_their_file(make_bert, file, text, fault):
    folder = make_bert("own", "cls")
    (folder / file).write_text(text)
    with pytest.raises(UserError, match=f"{file}.*{fault}"):
        read_folder_settings(folder)


@pytest.mark.parametrize("text", ["[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}'])
def test_a_list_of_weights_of_another_form_is_refused_with_its_file(make_bert, text):
    folder = make_bert("own", "cls")
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match="index.json: weight_map"):
        check_weights(folder)


def test_a_pooling_that_is_no_text_is_none_that_is_known(make_bert):
    folder = make_bert("own", "cls")
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": 5}')
    with pytest.raises(UserError):
        Encoder.create(str(folder), EncoderOptions(), "cpu")


def test_the_hash_follows_weights_and_settings_but_not_the_readme(make_bert, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(make_bert("own", "cls"), folder)
    (folder / "\udcff.json").write_text("{}")  # a name that is not UTF-8
    before = hash_model(folder)
    (folder / "README.md").write_text("words")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights again")
    assert hash_model(folder) == before
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert hash_model(folder) != before


def test_a_model_that_may_not_be_read_is_named(encoder, monkeypatch):
    refused = Mock(side_effect=PermissionError(13, "Permission denied", "m/model.safetensors"))
    monkeypatch.setattr(model_folder, "sha256_of_file", refused)
    with pytest.raises(UserError, match="^m/model.safetensors: Permission denied"):
        check_model(encoder.section)


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "justaword"])
def test_a_name_that_is_no_model_says_so(name):
    with pytest.raises(UserError, match="no such folder"):
        resolve_model(name)


def test_a_name_that_the_hub_does_not_know_is_refused_with_the_flag_that_named_it(monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=OSError("offline")))
    with pytest.raises(UserError, match="owner/name: neither .* Give the model's folder with --rerank"):
        _fetch_models(ServeCommand(index=(), web={"web": "serper"}, rerank={"rerank": "owner/name"}), {})


def test_a_folder_without_a_model_says_so(tmp_path):
    with pytest.raises(UserError, match="not a model folder"):
        resolve_model(str(tmp_path))
