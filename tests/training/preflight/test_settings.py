"""A value of a wrong type, and one that is missing, is named by its key before veRL makes anything of it."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from rag_r1.config.recipes import shipped_names
from rag_r1.training.command import main
from rag_r1.training.loggers import check_loggers
from rag_r1.training.preflight import preflight, preflight_sft
from rag_r1.training.preflight.cluster import check_cpu_rows
from rag_r1.training.preflight.data import check_paths
from rag_r1.training.preflight.settings import (
    check_rag_r1_keys,
    check_required_keys,
    check_types,
    check_verls_keys,
    check_weights,
    wrong_types,
)
from tests.recipes.composed_recipes import changed, composed

pytestmark = pytest.mark.slow  # composed recipes

GRPO, SFT = "recipes/rag_r1/grpo", "recipes/rag_r1/sft/demo"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize("name", [*shipped_names("train"), *shipped_names("sft")])
def test_every_shipped_recipe_has_the_types_that_verl_declares_and_leaves_nothing_of_verls_open(name):
    assert wrong_types(composed(name), []) == [] == [*check_verls_keys(composed(name))]


def test_a_word_that_is_no_override_is_named_with_where_it_belongs(capsys):
    assert main(["--recipe", "demo/grpo", "--check-only", "rag_r1/grpo", "rag_r1.agent.max_trns=3"]) == 1
    errors = capsys.readouterr().err
    assert "error: rag_r1/grpo: this is not key=value or ~key" in errors and "or its flag" in errors
    assert "max_trns" in errors and "brackets" not in errors


@pytest.mark.parametrize(
    ("recipe", "key", "value", "what"),
    [
        (GRPO, "actor_rollout_ref.actor.optim.lr", "fast", "'fast', which is not a number"),
        (GRPO, f"{ROLLOUT}.gpu_memory_utilization", "half", "'half', which is not a number"),
        (GRPO, "actor_rollout_ref.actor.optim.lr", None, "null, which is not a number"),
        (GRPO, "actor_rollout_ref.actor.ppo_epochs", True, "True, which is not a whole number"),
        (GRPO, "actor_rollout_ref.actor.ppo_epochs", 1.5, "1.5, which is not a whole number"),
        (GRPO, "algorithm.gamma", 10**400, "0, which is not a number"),
        (GRPO, "actor_rollout_ref.actor.use_kl_loss", "off", "'off', which is neither true nor false"),
        (GRPO, "algorithm.gamma", "1,0", "'1,0', which is not a number"),
        (GRPO, "actor_rollout_ref.actor.checkpoint.save_contents", 5, "5, which is not a list of names"),
        (GRPO, "actor_rollout_ref.actor.checkpoint.load_contents", [1], "[1], which is not a list of names"),
        (SFT, "optim.lr", "fast", "'fast', which is not a number"),
        (SFT, "optim.weight_decay", "0.1.2", "'0.1.2', which is not a number"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_by_its_key(recipe, key, value, what):
    (problem,) = check_types(changed(composed(recipe), **{key: value}))
    assert (problem.level, problem.where) == ("error", key) and what in problem.what


def test_a_number_that_other_keys_take_over_is_told_once():
    wrong = changed(composed(GRPO), **{f"{ROLLOUT}.n": "many"})
    assert [problem.where for problem in wrong_types(wrong, [f"{ROLLOUT}.n"])] == [f"{ROLLOUT}.n"]


def test_a_dataclass_of_anothers_is_not_imported():
    config = OmegaConf.create({"optim": {"_target_": "no_such_module.Optim", "lr": "fast"}})
    assert [*check_types(config)] == []


def test_each_entry_of_a_list_is_named_by_itself():
    entries = [{"term": "emm"}, {"term": "f1", "wieght": 2}, {"weight": 1}, "em"]
    config = changed(composed(GRPO), rag_r1__reward=entries, data__val_files=["a.parquet", 3, None])
    named = {problem.where for problem in check_rag_r1_keys(config)[1]}
    assert named == {f"rag_r1.reward[{entry}" for entry in ("0].term", "1].wieght", "2].term", "3]")}
    assert [problem.what.split(",")[0] for problem in check_paths(config)] == ["is 3", "is None"]


def test_the_report_has_a_missing_value_with_its_remedy_instead_of_a_traceback():
    config = changed(composed(GRPO), **{f"{ROLLOUT}.name": "???", "data.max_response_length": "???"})
    problems = {problem.where: problem for problem in preflight(config).errors}
    assert problems[f"{ROLLOUT}.name"].remedy == "set it to vllm" and "data.max_response_length" in problems


@pytest.mark.parametrize(
    ("check", "recipe", "wrong", "others"),
    [
        (
            preflight,
            GRPO,
            {"trainer.n_gpus_per_node": "two", "data.train_files": 7, f"{ROLLOUT}.max_model_len": 90},
            ["data.max_prompt_length + data.max_response_length", "none.parquet"],
        ),
        (preflight_sft, SFT, {"model.path": 7, "data.max_length": "x"}, ["data.val_files"]),
    ],
)
def test_a_wrong_number_or_path_hides_no_fault_that_does_not_follow_from_it(check, recipe, wrong, others):
    config = changed(composed(recipe), **wrong, data__val_files="none.parquet")
    named = [problem.where for problem in check(config).errors]
    assert {*wrong, *others} - {f"{ROLLOUT}.max_model_len"} <= set(named) and len(named) == len(set(named))


@pytest.mark.parametrize("value", ["", []])
def test_an_empty_list_of_files_and_an_empty_name_are_not_given(value):
    config = changed(composed(GRPO), data__train_files=value, data__val_files=value)
    wanted = {problem.where for problem in check_required_keys(config) if "must be given" in problem.what}
    assert {"data.train_files", "data.val_files"} <= wanted


@pytest.mark.parametrize("check", [preflight, preflight_sft])
def test_a_logger_that_verl_does_not_have_is_named(check):
    config = changed(composed(GRPO if check is preflight else SFT), trainer__logger=["console", "wandbx"])
    (problem,) = [problem for problem in check(config).errors if problem.where == "trainer.logger"]
    assert problem.remedy == "did you mean wandb?"


@pytest.mark.parametrize(
    ("value", "faults"),
    [("file", 0), (["tracking", "mlflow"], 0), (None, 1), (5, 1), (["x", [1], "wandb"], 2)],
)
def test_loggers_are_one_name_or_a_list_of_names(value, faults):
    assert len([*check_loggers(OmegaConf.create({"trainer": {"logger": value}}))]) == faults


def test_the_engine_of_a_reward_model_is_asked_for_only_if_there_is_one():
    config = changed(composed(GRPO), reward__reward_model__enable=True)
    assert [problem.where for problem in check_verls_keys(config)] == ["reward.reward_model.rollout.name"]


def test_what_the_command_itself_reads_is_named_too_if_it_is_missing(capsys):
    words = ["--recipe", GRPO, "--check-only", "--leave-model"]
    assert main([*words, "trainer.device='???'", "trainer.save_freq='???'"]) == 1
    errors = capsys.readouterr().err
    assert "error: trainer.device: must be given" in errors
    assert "error: trainer.save_freq: must be given" in errors


@pytest.mark.parametrize(
    "override", ["trainer.nnodes=[1,", "trainer.project_name='mine", "a b=3", "hydra.searchpath=["]
)
def test_an_override_that_hydra_cannot_read_is_named_with_how_to_quote_it(override, capsys):
    words = ["--recipe", "demo/grpo", "--check-only", "rag_r1.agent.max_trns=3"]
    assert main([*words, override, "trainer.save_freq=[2,"]) == 1
    errors = capsys.readouterr().err
    for wrong in (override, "trainer.save_freq=[2,"):
        assert f"error: {wrong.partition('=')[0]}: {wrong!r} cannot be read as key=value" in errors
    assert "quote a text with spaces" in errors and "max_trns" in errors, "the others are reported too"
    assert "viable" not in errors and "hydra.cc" not in errors


@pytest.mark.parametrize(
    ("recipe", "key", "value", "what"),
    [
        (GRPO, "data.train_batch_size", 0, "is 0"),
        (GRPO, f"{ROLLOUT}.n", -2, "is -2"),
        (GRPO, "trainer.total_epochs", float("nan"), "nan, which is not a number"),
        (GRPO, "trainer.save_freq", float("inf"), "inf, which is not a number"),
        (GRPO, "data.train_max_samples", "1k", "'1k', which is not a number"),
        (GRPO, "data.max_response_length", 1.5, "is 1.5"),
        (GRPO, "algorithm.gamma", float("nan"), "nan, which is not a number"),
        (GRPO, "actor_rollout_ref.actor.optim.lr", -1, "a learning rate below 0"),
        (SFT, "trainer.total_epochs", float("nan"), "nan, which is not a number"),
        (SFT, "data.train_batch_size", 0, "is 0"),
        (SFT, "checkpoint.save_contents", 5, "5, which is not a list of names"),
        (SFT, "optim.lr", -1e-5, "a learning rate below 0"),
    ],
)
def test_a_value_that_nothing_can_be_trained_with_is_named_by_its_key(recipe, key, value, what):
    check = preflight if recipe == GRPO else preflight_sft
    config = changed(composed(recipe), **{key: value})
    problems = {problem.where: problem for problem in check(config).errors}
    assert what in problems[key].what and problems[key].remedy.startswith("give ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "defaults: [rag_r1/gpro, _self_]\n",
            "is built on 'rag_r1/gpro', which is not there: did you mean rag_r1/grpo?",
        ),
        (
            "defaults: [rag_r1/grpo, _self_]\ntrainer: [\n",
            "mine.yaml, line 3: not YAML (expected the node content",
        ),
        ("defaults: {rag_r1/grpo: x}\n", "defaults must be a list (got mapping)"),
        ("defaults: [1]\n", "mine: Unsupported type in defaults : int"),
        ("defaults: [1: x]\n", ": correct its defaults list"),
    ],
)
def test_a_recipe_that_does_not_compose_is_named_with_the_remedy(text, said, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(text)
    assert main(["--recipe", str(tmp_path / "mine.yaml"), "--check-only"]) == 1
    errors = capsys.readouterr().err
    assert said in errors and "Config search path" not in errors


def test_a_platform_that_is_no_name_is_refused_and_ends_no_check_with_a_traceback(capsys):
    assert main(["--recipe", "demo/grpo", "--check-only", "platform=5"]) == 1
    assert "error: platform: Config group override must be a string" in capsys.readouterr().err


def test_a_reward_whose_terms_all_have_the_weight_0_is_warned_of():
    for weight, count in ((0.0, 1), (0.5, 0)):
        config = changed(composed(GRPO), rag_r1__reward=[{"term": "em", "weight": weight}])
        assert len([*check_weights(config, check_rag_r1_keys(config)[0])]) == count


def test_attention_for_a_cpu_is_not_blamed_on_a_device_that_does_not_exist():
    attention = {"actor_rollout_ref.model.override_config.attn_implementation": "packed_sdpa"}
    for device, count in (("tpu", 0), ("cuda", 1)):
        config = changed(composed(GRPO), trainer__device=device, **attention)
        assert len([*check_cpu_rows(config, "actor_rollout_ref.model", "actor_rollout_ref.actor")]) == count
