"""What would spoil a run on GPUs after hours is named before it: updates, engines, addresses, filtering."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import FSDPCriticConfig

from rag_r1.config.recipes import shipped_names
from rag_r1.config.schema import RagR1Config
from rag_r1.plugin.cpu.packed_attention import PACKED_SDPA
from rag_r1.training.preflight import cluster
from rag_r1.training.preflight.cluster import (
    check_batch_sizes,
    check_engines,
    check_reachability,
    is_loopback,
)
from rag_r1.training.preflight.sampler import check_filtering, check_sampler
from rag_r1.training.preflight.settings import check_lengths
from tests.recipes.composed_recipes import changed, composed

pytestmark = pytest.mark.slow  # composed recipes

RECIPE_NAMES = shipped_names("train")
ON_GPUS = [name for name in RECIPE_NAMES if name.startswith(("rag_r1/", "r1_searcher/"))]
#: Nodes of eight GPUs on which a recipe's own numbers can be shared.
NODES = {"stage1_llama": 2, "stage2_llama": 2, "stage1_qwen": 32, "stage2_qwen": 32}
NODES |= {"ppo_sq": 16, "ppo_mq": 16, "grpo": 32}
LOOPBACK = ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000", "http://0.0.0.0:1"]


def change(name: str, *overrides: str, **values):
    return changed(composed(name, *overrides), **values)


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_every_recipe_can_be_shared_by_its_own_gpus(name: str):
    assert [*check_batch_sizes(composed(name)), *check_engines(composed(name))] == []


@pytest.mark.parametrize("name", ON_GPUS)
def test_every_number_of_nodes_up_to_a_recipes_limit(name: str):
    most = NODES[name.rpartition("/")[2]]
    nodes = 1
    while nodes <= most:
        assert [*check_batch_sizes(change(name, trainer__nnodes=nodes))] == []
        nodes *= 2
    problems = [*check_batch_sizes(change(name, trainer__nnodes=nodes))]
    assert problems and all(problem.where.endswith("ppo_mini_batch_size") for problem in problems)


@pytest.mark.parametrize(
    ("name", "nodes", "each", "rows"),
    [("stage1_llama", 4, 8, 208), ("stage2_llama", 4, 8, 48), ("stage1_qwen", 1, 6, 256)],
)
def test_an_update_that_the_gpus_cannot_share_is_named_with_one_that_they_can(name, nodes, each, rows):
    config = change(f"recipes/r1_searcher/{name}", trainer__nnodes=nodes, trainer__n_gpus_per_node=each)
    (problem,) = check_batch_sizes(config)
    assert problem.where == "actor_rollout_ref.actor.ppo_mini_batch_size" and f"= {rows} traj" in problem.what
    better = int(problem.remedy.rpartition(" ")[2])
    config.actor_rollout_ref.actor.ppo_mini_batch_size = better
    assert [*check_batch_sizes(config)] == []


def test_the_critics_update_is_checked_where_there_is_a_critic():
    config = change("recipes/rag_r1/ppo_mq", critic__ppo_mini_batch_size=100)
    assert [problem.where for problem in check_batch_sizes(config)] == ["critic.ppo_mini_batch_size"]
    config.algorithm.adv_estimator = "grpo"
    assert [*check_batch_sizes(config)] == []


@given(
    mini=st.integers(1, 300), n=st.integers(1, 16), nodes=st.integers(1, 8), each=st.integers(1, 8),
    sequence=st.sampled_from([1, 2, 4]),
)  # fmt: skip
def test_it_is_said_exactly_when_verl_would_assert(mini, n, nodes, each, sequence):
    config = deepcopy(_SMALL)
    config.trainer.nnodes, config.trainer.n_gpus_per_node = nodes, each
    config.actor_rollout_ref.rollout.n, config.actor_rollout_ref.actor.ppo_mini_batch_size = n, mini
    config.actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size = sequence
    problems = [*check_batch_sizes(config)]
    if (nodes * each) % sequence:
        assert [problem.where for problem in problems] == ["actor_rollout_ref.actor"]
        return
    ranks = nodes * each // sequence
    assert bool(problems) == bool(mini * n % ranks), "engine_workers.py: mini_batch_size % data_parallel_size"
    if problems:
        step = ranks // math.gcd(ranks, n)
        assert f"multiple of {step}," in problems[0].remedy


_SMALL = OmegaConf.create(
    {
        "trainer": {"nnodes": 1, "n_gpus_per_node": 1, "v1": {"trainer_mode": "sync"}},
        "data": {"max_prompt_length": 1, "max_response_length": 1},
        "algorithm": {"adv_estimator": "grpo"},
        "critic": {"enable": None},
        "actor_rollout_ref": {
            "actor": {
                "strategy": "fsdp", "ppo_mini_batch_size": 1, "use_dynamic_bsz": True, "use_kl_loss": False,
                "fsdp_config": {"ulysses_sequence_parallel_size": 1},
            },
            "rollout": {"n": 1, "log_prob_use_dynamic_bsz": True},
            "ref": {},
        },
    }
)  # fmt: skip


def test_fixed_micro_batches_must_divide_the_rows_of_a_rank():
    fixed = ["actor_rollout_ref.actor.use_dynamic_bsz=false", "critic.use_dynamic_bsz=false"]
    fixed += [f"actor_rollout_ref.{role}.log_prob_use_dynamic_bsz=false" for role in ("rollout", "ref")]
    assert [*check_batch_sizes(composed("recipes/rag_r1/ppo_mq", *fixed))] == [], "as published"
    config = change("recipes/rag_r1/ppo_mq", *fixed, trainer__nnodes=8)
    keys = {problem.where for problem in check_batch_sizes(config)}
    assert keys == {
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    }


def test_log_probs_are_divided_as_updates_are():
    key = "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz"
    config = composed("recipes/rag_r1/grpo", f"{key}=false")
    assert key in {problem.where for problem in check_batch_sizes(config) if problem.level == "error"}


def test_separate_gpus_get_as_many_updates_as_a_step_has_prompts_for():
    key, separate = "trainer.v1.separate_async.parameter_sync_step", "trainer.v1.trainer_mode=separate_async"
    found = check_batch_sizes(composed("recipes/rag_r1/grpo", separate))
    assert key in {problem.where for problem in found}, "4 x 256, and 512 a step"
    assert [*check_batch_sizes(composed("recipes/rag_r1/grpo", separate, f"{key}=2"))] == []


def test_the_keys_of_the_critic_reach_its_engine_where_verl_reads_them():
    keys = {"ulysses_sequence_parallel_size": 2, "use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 3}
    config = composed("recipes/rag_r1/ppo_mq", *(f"critic.{key}={value}" for key, value in keys.items()))
    engine = omega_conf_to_dataclass(config.critic.fsdp)
    assert (engine.ulysses_sequence_parallel_size, engine.use_dynamic_bsz) == (2, False)
    assert engine.micro_batch_size_per_gpu == engine.infer_micro_batch_size_per_gpu == 3
    rows = [f"critic.{key}={keys[key]}" for key in ("use_dynamic_bsz", "ppo_micro_batch_size_per_gpu")]
    megatron = composed("recipes/rag_r1/ppo_mq", "platform=megatron", *rows).critic.megatron
    assert (megatron.use_dynamic_bsz, megatron.micro_batch_size_per_gpu) == (False, 3)


@pytest.mark.parametrize(
    "key",
    [
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
        "critic.ppo_max_token_len_per_gpu",
    ],
)
def test_a_micro_batch_holds_the_longest_row(key: str):
    config = change("recipes/rag_r1/ppo_mq", **{key.replace(".", "__"): 10239})
    assert key in {problem.where for problem in check_batch_sizes(config)}
    config = change("recipes/rag_r1/ppo_mq", **{key.replace(".", "__"): 10240})
    assert [*check_batch_sizes(config)] == []


def test_the_critic_of_verl_gets_the_limit_that_is_checked():
    config = change("recipes/rag_r1/ppo_mq", critic__ppo_max_token_len_per_gpu=12000)
    assert config.critic.ppo_infer_max_token_len_per_gpu == 12000
    assert "ppo_infer_max_token_len_per_gpu" in {field.name for field in dataclasses.fields(FSDPCriticConfig)}


def test_megatrons_context_parallel_gpus_share_a_row():
    key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    sizes = [f"{key}=5120", "actor_rollout_ref.actor.megatron.context_parallel_size=2"]
    sizes += [f"actor_rollout_ref.{role}.log_prob_max_token_len_per_gpu=5120" for role in ("rollout", "ref")]
    config = composed("recipes/rag_r1/grpo", "platform=megatron", *sizes)
    assert [problem for problem in check_batch_sizes(config) if "max_token_len" in problem.where] == []
    config = changed(config, actor_rollout_ref__actor__megatron__context_parallel_size=1)
    assert key in {problem.where for problem in check_batch_sizes(config)}


def test_replicas_must_divide_the_gpus():
    config = change("recipes/rag_r1/grpo", actor_rollout_ref__rollout__tensor_model_parallel_size=3)
    (problem,) = check_batch_sizes(config)
    assert problem.where.endswith("tensor_model_parallel_size") and "replicas of 3" in problem.what


# --- engines


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_an_engine_without_stop_strings_is_refused_with_the_reason(engine: str):
    (problem,) = check_engines(composed("recipes/rag_r1/grpo", f"actor_rollout_ref.rollout.name={engine}"))
    assert problem.level == "error" and "include_stop_str_in_output" in problem.what
    assert problem.remedy == "set it to vllm"


def test_a_repeatable_rollout_is_refused_on_a_cpu_whose_vllm_has_no_kernels_for_it():
    key = "actor_rollout_ref.rollout.full_determinism"
    (problem,) = check_engines(composed("recipes/demo/grpo", f"{key}=true"))
    assert (problem.level, problem.where) == ("error", key)


def test_megatron_that_is_not_installed_is_named():
    problems = [*check_engines(composed("recipes/rag_r1/grpo", "platform=megatron"))]
    installed = importlib.util.find_spec("megatron") is not None
    assert [p.where for p in problems] == ([] if installed else ["actor_rollout_ref.actor.strategy"])


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed")
@pytest.mark.parametrize(
    ("name", "parts"), [("grpo", ["actor_rollout_ref"]), ("ppo_mq", ["actor_rollout_ref", "critic"])]
)
def test_flash_attn_that_a_gpu_training_asks_for_must_be_there(nvidia_smi, name, parts):
    nvidia_smi("580.159.04")
    problems = [*check_engines(composed(f"recipes/rag_r1/{name}"))]
    keys = [f"{part}.model.override_config.attn_implementation" for part in parts]
    assert [problem.where for problem in problems] == keys
    assert all("platform=gpu_sdpa" in problem.remedy for problem in problems)
    for platform in ("gpu_sdpa", "cpu"):
        assert [*check_engines(composed(f"recipes/rag_r1/{name}", f"platform={platform}"))] == []


def test_packed_attention_needs_packed_rows_and_a_cpu_for_policy_and_critic():
    assert cluster._PACKED_SDPA == PACKED_SDPA
    padded = [f"{part}.model.use_remove_padding=false" for part in ("actor_rollout_ref", "critic")]
    problems = [*check_engines(composed("recipes/demo/ppo_mq", "platform=cpu_packed", *padded))]
    assert [problem.where for problem in problems] == [override.partition("=")[0] for override in padded]
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    gpu = composed("recipes/rag_r1/grpo", "platform=gpu_sdpa", f"{key}={PACKED_SDPA}")
    assert key in [problem.where for problem in check_engines(gpu)]


@pytest.mark.parametrize(("is_fast", "count"), [(True, 0), (None, 0), (False, 1)])
def test_bf16_on_a_cpu_without_instructions_for_it_is_a_warning(monkeypatch, is_fast, count):
    monkeypatch.setattr(cluster, "multiplies_bf16", lambda: is_fast)
    problems = [*check_engines(composed("recipes/real_small/grpo", "platform=cpu_bf16"))]
    assert [problem.level for problem in problems] == ["warning"] * count


def test_offloading_that_frees_nothing_on_one_gpu_is_named_with_the_key_that_mends_it():
    """tests/plugin/test_fsdp1_one_process.py shows both."""
    key, one_gpu = (
        "actor_rollout_ref.actor.fsdp_config.{}",
        ["platform=gpu_sdpa", "trainer.n_gpus_per_node=1"],
    )
    (problem,) = check_engines(composed("recipes/rag_r1/grpo", *one_gpu))
    assert (problem.level, problem.where) == ("warning", key.format("param_offload"))
    own = key.format("use_orig_params=true")
    assert own in problem.remedy
    for override in (own, key.format("param_offload=false"), "actor_rollout_ref.actor.strategy=fsdp2"):
        assert [*check_engines(composed("recipes/rag_r1/grpo", *one_gpu, override))] == []


def test_weights_that_travel_by_nccl_need_cupy():
    nccl = "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl"
    problems = [
        *check_engines(composed("recipes/rag_r1/grpo", "trainer.v1.trainer_mode=separate_async", nccl))
    ]
    installed = importlib.util.find_spec("cupy") is not None
    assert bool(problems) != installed
    assert all("cupy-cuda13x==14.0.1" in problem.remedy for problem in problems)
    assert [*check_engines(composed("recipes/rag_r1/grpo", nccl))] == [], "only if they are apart"


# --- several nodes


@pytest.mark.parametrize("url", LOOPBACK)
def test_a_retriever_on_this_machine_does_not_serve_several_nodes(url: str):
    config = change("recipes/rag_r1/grpo", rag_r1__retriever__url=url)
    assert [*check_reachability(config)] == []
    config.trainer.nnodes = 2
    (problem,) = check_reachability(config)
    assert (problem.level, problem.where) == ("error", "rag_r1.retriever.url")
    assert "0.0.0.0" in problem.remedy


def test_a_retriever_of_the_validation_alone_is_checked_too():
    config = change("recipes/rag_r1/grpo", rag_r1__retriever__url="http://10.0.0.7:8000", trainer__nnodes=2)
    assert [*check_reachability(config)] == []
    config.rag_r1.validation_retriever = {"url": "http://127.0.0.2:8000"}
    assert [problem.where for problem in check_reachability(config)] == ["rag_r1.validation_retriever.url"]


def test_nodes_that_only_generate_count_as_nodes():
    apart = ["trainer.v1.trainer_mode=separate_async", "actor_rollout_ref.rollout.nnodes=1"]
    config = change("recipes/rag_r1/grpo", *apart, rag_r1__retriever__url="http://127.0.0.1:8000")
    (problem,) = check_reachability(config)
    assert problem.level == "warning"  # both may be on one machine
    config.actor_rollout_ref.rollout.nnodes = 2
    (problem,) = check_reachability(config)
    assert problem.level == "error"


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.9.9.9", True), ("localhost:8000", True), ("http://retriever:8000", False),
        ("http://10.1.2.3:8000", False), ("http://128.0.0.1", False), ("http://[fe80::1]", False),
        ("http://[", False),
    ],
)  # fmt: skip
def test_which_addresses_mean_this_machine(url: str, here: bool):
    assert is_loopback(url) is here


# --- group filtering

DAPO = ["algorithm.filter_groups.enable=true"]
LIMIT = "algorithm.filter_groups.max_num_gen_batches"


def filtering(*overrides: str, name: str = "recipes/rag_r1/grpo", **values):
    config = change(name, *overrides, **values)
    block = OmegaConf.to_container(config.rag_r1, resolve=True, throw_on_missing=False)
    return [*check_filtering(config, RagR1Config.from_config(block))]


def test_filtering_with_the_recipes_is_well():
    assert filtering(*DAPO) == filtering(*DAPO, "algorithm.filter_groups.metric=em") == []
    assert filtering("trainer.v1.sampler.sync_refill_failed_groups=true") == []


def test_a_wrong_key_of_the_samplers_is_named():
    assert [*check_sampler(change("recipes/rag_r1/grpo"))] == []
    wrong = change("recipes/rag_r1/grpo", trainer__v1__sampler__sampler_kwargs__refills=-1)
    (problem,) = check_sampler(wrong)
    assert problem.where == "trainer.v1.sampler.sampler_kwargs.refills"
    assert problem.what == "must be a whole number of at least 0, not -1"


def test_a_recipe_that_does_not_tell_the_sampler_is_refused_for_it_would_filter_nothing():
    (problem,) = filtering(*DAPO, trainer__v1__sampler__sampler_kwargs__filter_groups=None)
    assert problem.level == "error" and problem.where.endswith("sampler_kwargs.filter_groups")
    (problem,) = filtering(
        "trainer.v1.sampler.sync_refill_failed_groups=true",
        trainer__v1__sampler__sampler_kwargs__sync_refill_failed_groups=False,
    )
    assert problem.level == "error" and problem.where.endswith("sync_refill_failed_groups")


@pytest.mark.parametrize(
    ("override", "level", "key"),
    [
        ("algorithm.filter_groups.metric=acc", "error", "algorithm.filter_groups.metric"),
        (f"{LIMIT}=0", "warning", LIMIT),
        ("reward.reward_model.enable=true", "error", "reward.reward_model.enable_resource_pool"),
        ("trainer.v1.sampler.custom_sampler.path=mine.py", "warning", "algorithm.filter_groups.enable"),
    ],
)
def test_filtering_that_cannot_work_is_named(override: str, level: str, key: str):
    (problem,) = filtering(*DAPO, override)
    assert (problem.level, problem.where) == (level, key)
    assert filtering(override) == [], "only with filtering"


# --- lengths of validation


def test_a_turn_of_the_validation_must_fit_too():
    config = change("recipes/rag_r1/grpo", rag_r1__validation_agent__max_turn_tokens=9000)
    assert "rag_r1.validation_agent.max_turn_tokens" in {problem.where for problem in check_lengths(config)}
