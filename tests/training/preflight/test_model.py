"""A model and its tokenizer are each found under their own key, in a folder or on the Hub."""

from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf

from rag_r1.training.preflight.model import check_critic, check_model
from tests.agent.chat_templates import tokenizer_with
from tests.fakes.weights import NO_TENSORS


def checked(**model):
    return check_model(OmegaConf.create({"model": model}), "model")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    tokenizer_with("plain").save_pretrained(tmp_path / "tokenizer")
    return tmp_path


def test_a_tokenizer_in_the_home_folder_is_found_also_for_a_model_of_the_hub(home):
    tokenizer, problems = checked(path="our/model", tokenizer_path="~/tokenizer")
    assert tokenizer is not None and problems == []


def test_a_tokenizer_that_cannot_be_loaded_is_named_by_its_own_key(home):
    (home / "config.json").write_text("{}")
    (home / "model.safetensors").write_bytes(NO_TENSORS)
    tokenizer, (problem,) = checked(path="~", tokenizer_path="~/nowhere")
    assert (tokenizer, problem.where) == (None, "model.tokenizer_path") and "~/nowhere" in problem.what


@pytest.mark.parametrize(
    ("role", "given"), [("actor/", "run"), ("", "run/checkpoints"), ("", "run/checkpoints/global_step_2")]
)
def test_for_a_runs_folder_the_model_of_its_newest_checkpoint_is_suggested(role, given, home):
    for step in (2, 1):
        model = home / f"run/checkpoints/global_step_{step}/{role}huggingface"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(NO_TENSORS)
    (home / "run/checkpoints/latest_checkpointed_iteration.txt").write_text("2")
    [problem] = checked(path=f"~/{given}")[1]
    assert problem.remedy.endswith(f"run/checkpoints/global_step_2/{role}huggingface")


def test_a_model_folder_without_weights_is_named_with_the_remedy(home):
    tokenizer_with("plain").save_pretrained(home / "model")
    (home / "model" / "config.json").write_text("{}")
    tokenizer, (problem,) = checked(path="~/model")
    assert tokenizer is not None, "so that it is checked too"
    assert (problem.level, problem.where) == (
        "error",
        "model.path",
    ) and "~/model holds no weights" in problem.what
    assert "hf download" in problem.remedy
    (home / "model" / "model.safetensors").write_bytes(NO_TENSORS)
    assert checked(path="~/model")[1] == []
    (home / "model" / "model.safetensors").write_bytes(NO_TENSORS[:-1])
    [problem] = checked(path="~/model")[1]
    assert "not a file of weights" in problem.what and "download the model again" in problem.remedy


def test_a_model_type_that_transformers_does_not_know_is_named_unless_the_folder_brings_its_code(home):
    tokenizer_with("plain").save_pretrained(home / "model")
    (home / "model" / "model.safetensors").write_bytes(NO_TENSORS)
    for code, levels in (({}, ["error"]), ({"auto_map": {}}, [])):
        (home / "model" / "config.json").write_text(json.dumps({"model_type": "llamma", **code}))
        problems = checked(path="~/model")[1]
        assert [problem.level for problem in problems if "'llamma'" in problem.what] == levels


@pytest.mark.parametrize(
    ("config", "is_refused"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, True),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, False),
        ({"model_type": "qwen2", "architectures": ["Qwen2Model"]}, False),
        ({"model_type": "bert"}, False),
    ],
)
def test_an_encoder_is_no_policy(home, config, is_refused):
    tokenizer_with("plain").save_pretrained(home / "model")
    (home / "model" / "model.safetensors").write_bytes(NO_TENSORS)
    (home / "model" / "config.json").write_text(json.dumps(config))
    problems = checked(path="~/model")[1]
    assert any("no causal language model" in problem.what for problem in problems) == is_refused


def test_a_config_that_is_a_list_is_named_beside_the_tokenizers_error(home):
    tokenizer_with("plain").save_pretrained(home / "model")
    (home / "model" / "model.safetensors").write_bytes(NO_TENSORS)
    (home / "model" / "config.json").write_text("[1]")
    assert any("(config.json: " in problem.what for problem in checked(path="~/model")[1])


def test_a_model_with_fewer_embeddings_than_its_tokenizer_has_ids_is_named(home):
    tokenizer_with("plain").save_pretrained(home / "model")
    (home / "model" / "model.safetensors").write_bytes(NO_TENSORS)
    (home / "model" / "config.json").write_text('{"text_config": {"vocab_size": 7}}')
    tokenizer, (problem,) = checked(path="~/model")
    assert tokenizer is not None and problem.where == "model.path" and "vocab_size of 7" in problem.what


def test_weights_in_megatrons_own_shards_need_none_in_the_model_folder(home):
    tokenizer_with("plain").save_pretrained(home / "model")
    (home / "model" / "config.json").write_text("{}")
    actor = {"actor": {"megatron": {"use_dist_checkpointing": True}}}
    config = OmegaConf.create({"model": {"path": "~/model"}, "actor_rollout_ref": actor})
    assert check_model(config, "model")[1] == []


def test_weights_are_looked_for_in_the_folder_of_a_critics_own_model(home):
    tokenizer_with("plain").save_pretrained(home / "value")
    (home / "value" / "config.json").write_text("{}")

    def critic(path: str, enable: bool = True) -> list:
        parts = {"critic": {"enable": enable, "model": {"path": path}}, "algorithm": {"adv_estimator": "gae"}}
        return check_critic(OmegaConf.create({**parts, "actor_rollout_ref": {"model": {"path": "~/policy"}}}))

    [problem] = critic("~/value")
    assert problem.where == "critic.model.path" and "~/value holds no weights" in problem.what
    assert [problem.where for problem in critic("~/none")] == ["critic.model.path"]
    [problem] = critic("~/models/deepseek-llm-7b-chat")  # veRL's own, in a recipe that sets none
    assert problem.what == "must be given" and "critic.model.path=${actor_rollout_ref" in problem.remedy
    model = OmegaConf.create({"path": "${actor_rollout_ref.model.path}"})
    parts = {"critic": {"enable": True, "model": model}, "actor_rollout_ref": {"model": {"path": None}}}
    assert check_critic(OmegaConf.create(parts)) == [], "the policy's key has the problem"
    assert critic("~/value", enable=False) == critic("~/policy") == []
    (home / "value" / "model.safetensors").write_bytes(NO_TENSORS)
    assert critic("~/value") == [], "it needs no chat template"
