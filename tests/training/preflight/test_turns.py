"""The preflight of chat turns: a template that cannot be used is named with the model and what to do."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from omegaconf import OmegaConf

from rag_r1.config.schema import RagR1Config
from rag_r1.training.preflight.model import check_turns
from tests.agent.chat_templates import PLAIN, tokenizer_with

NO_TOOLS = PLAIN.replace("{% if tools %}", "{% if false %}")


def settings(protocol="agentic_rag_tools", **more):
    return RagR1Config.from_config({"protocol": protocol, **more})


def problems_of(tokenizer, block=None, path="/no/such/model", **data):
    config = OmegaConf.create({"actor_rollout_ref": {"model": {"path": str(path)}}, "data": data})
    return [*check_turns(config, block or settings(), tokenizer)]


def test_a_template_with_tools_and_unchanged_turns_passes():
    assert problems_of(tokenizer_with("plain")) == []


def test_a_protocol_with_turns_as_text_asks_nothing_of_the_template():
    assert problems_of(tokenizer_with(NO_TOOLS), settings("rag_r1_mq")) == []


def test_a_template_that_leaves_out_tools_is_named():
    (problem,) = problems_of(tokenizer_with(NO_TOOLS))
    assert (problem.level, problem.where) == ("error", "actor_rollout_ref.model.path")
    assert "does not show tools" in problem.what and "custom_chat_template" in problem.remedy


def test_the_arguments_of_the_template_count():
    short = "{{ m.content[9:] if short and m.role == 'assistant' else m.content }}"
    switched = PLAIN.replace("{{ m.content }}", short)
    assert problems_of(tokenizer_with(switched)) == []
    (problem,) = problems_of(tokenizer_with(switched), apply_chat_template_kwargs={"short": True})
    assert "rewrites earlier turns" in problem.what


@pytest.mark.parametrize("named", [None, 3, [3, 4], "of the template"])
def test_the_engine_must_stop_where_the_template_ends_a_turn(tmp_path, named):
    tokenizer = deepcopy(tokenizer_with("plain"))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokenizer.eos_token = "<|endoftext|>"
    if named is not None:
        ids = [3, end] if named == "of the template" else named
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    problems = problems_of(tokenizer, path=tmp_path)
    assert [problem.where for problem in problems] == (
        [] if named == "of the template" else ["actor_rollout_ref.model.path"]
    )
    assert all("'<|im_end|>', at which the engine does not stop" in problem.what for problem in problems)


@pytest.mark.parametrize(
    ("cached", "levels"), [("of the template", []), ("another", ["error"]), (None, ["warning"])]
)
def test_a_model_of_the_hub_is_judged_by_its_generation_settings_and_without_them_only_warned_of(
    tmp_path, monkeypatch, cached, levels
):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    tokenizer = deepcopy(tokenizer_with("plain"))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokenizer.eos_token = "<|endoftext|>"
    if cached is not None:
        snapshot = tmp_path / "models--our--model" / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (tmp_path / "models--our--model" / "refs").mkdir()
        (tmp_path / "models--our--model" / "refs" / "main").write_text("0" * 40)
        ids = [3, end] if cached == "of the template" else 3
        (snapshot / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    problems = problems_of(tokenizer, path="our/model")
    assert [problem.level for problem in problems] == levels


def test_a_tool_that_cannot_be_made_is_named_by_its_key():
    (problem,) = problems_of(tokenizer_with("plain"), settings(tools={"calculator": "no_such_module:add"}))
    assert problem.where.startswith("rag_r1.tools.calculator")
