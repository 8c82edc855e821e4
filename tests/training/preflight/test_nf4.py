"""Weights in nf4: a setting with which veRL would train or generate with other weights is refused by name."""

from __future__ import annotations

import json

import pytest

from rag_r1.training.preflight import nf4
from rag_r1.training.preflight.adapters import check_adapters
from rag_r1.training.preflight.nf4 import check_nf4
from rag_r1.training.preflight.weight_transfer import check_bucket
from tests.recipes.composed_recipes import changed, composed

pytestmark = pytest.mark.slow  # composed recipes

MODEL, ACTOR, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout"))
CONTENTS = f"{ACTOR}.checkpoint.save_contents"
PRECISION = f"{ACTOR}.fsdp_config.mixed_precision"
GPU, CPU = "recipes/hardware/one_gpu_80_nf4", "recipes/demo/grpo_nf4"


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(nf4, "find_spec", lambda name: object())


def where(config) -> list[str]:
    problems = list(check_nf4(config))
    assert {problem.level for problem in problems} <= {"error"} and all(
        problem.remedy for problem in problems
    )
    return [problem.where for problem in problems]


@pytest.mark.parametrize(
    "name", [GPU, CPU, "recipes/hardware/one_gpu_24_nf4", "recipes/hardware/two_gpu_80_nf4"]
)
def test_the_recipes_pass(name):
    assert where(composed(name)) == [] == list(check_adapters(composed(name)))


def test_without_nf4_nothing_is_checked():
    assert where(composed("recipes/hardware/one_gpu_80_grpo")) == []


@pytest.mark.parametrize(
    ("override", "key"),
    [
        (f"{MODEL}.lora_rank=0", f"{MODEL}.lora_rank"),
        (f"{ACTOR}.strategy=megatron", f"{ACTOR}.strategy"),
        (f"{CONTENTS}=[model,optimizer,extra,hf_model]", CONTENTS),
        (f"{ACTOR}.checkpoint.save_lora_only=false", f"{ACTOR}.checkpoint.save_lora_only"),
        (f"{ROLLOUT}.load_format=safetensors", f"{ROLLOUT}.load_format"),
        (f"{ROLLOUT}.layered_summon=true", f"{ROLLOUT}.layered_summon"),
        (f"{ROLLOUT}.quantization=bitsandbytes", f"{ROLLOUT}.quantization"),
        (f"{ROLLOUT}.checkpoint_engine.backend=delta_sharded", f"{ROLLOUT}.checkpoint_engine.backend"),
        (f"{ACTOR}.fsdp_config.offload_policy=true", f"{ACTOR}.fsdp_config.offload_policy"),
        (f"{ACTOR}.fsdp_config.qat.enable=true", f"{ACTOR}.fsdp_config.qat.enable"),
        (f"{MODEL}.enable_activation_offload=true", f"{MODEL}.enable_activation_offload"),
        (f"{MODEL}.use_liger=true", f"{MODEL}.use_liger"),
        (f"+{PRECISION}={{param_dtype: fp16}}", f"{PRECISION}.param_dtype"),
    ],
)  # fmt: skip
def test_a_setting_that_would_train_or_send_other_weights_is_refused(override, key):
    assert where(composed(GPU, override)) == [key]


@pytest.mark.parametrize(
    ("recipe", "override"),
    [(CPU, f"{MODEL}.lora.merge=false"), (GPU, "trainer.v1.trainer_mode=separate_async")],
    ids=["on a CPU", "separate_async"],
)
def test_adapters_that_are_not_merged_where_vllm_takes_none_are_refused(recipe, override):
    """By the check of all adapters."""
    assert [p.where for p in check_adapters(composed(recipe, override)) if p.level == "error"] == [
        f"{MODEL}.lora.merge"
    ]


def test_merged_weights_are_sent_in_each_step_so_their_format_does_not_matter():
    assert where(composed(CPU, f"{ROLLOUT}.load_format=safetensors")) == []


def test_a_missing_bitsandbytes_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(nf4, "find_spec", lambda name: None)
    (problem,) = check_nf4(composed(GPU))
    assert problem.where == f"{MODEL}.external_lib" and "nf4]" in problem.remedy


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"quantization_config": {"bits": 4}}, "quantised already"), ({"num_experts": 64}, "has experts")],
)
def test_a_model_that_is_quantised_or_has_experts_is_refused(tmp_path, keys, said):
    (tmp_path / "config.json").write_text(json.dumps(keys))
    (problem,) = check_nf4(changed(composed(GPU), actor_rollout_ref__model__path=str(tmp_path)))
    assert problem.where == f"{MODEL}.path" and said in problem.what


def test_buckets_are_for_dequantised_weights_in_the_dtype_of_computing(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 152_064, "hidden_size": 5120}))
    small = {"actor_rollout_ref__model__path": str(tmp_path)}
    small["actor_rollout_ref__rollout__checkpoint_engine__update_weights_bucket_megabytes"] = 256
    (problem,) = check_bucket(changed(composed(GPU), **small))
    assert f"{152_064 * 5120 * 2 / 2**20:.0f} MB in bf16" in problem.what
