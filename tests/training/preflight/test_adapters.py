"""LoRA recipes: the platform decides whether adapters are merged, and updates survive the adapters' bf16."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rag_r1.training.preflight import adapters
from rag_r1.training.preflight.adapters import check_adapters
from tests.recipes.composed_recipes import composed

pytestmark = pytest.mark.slow  # composed recipes, and veRL's engine

RECIPES = ["recipes/agentic_rag/grpo_lora", "recipes/agentic_rag/dapo_lora"]
MERGE = "actor_rollout_ref.model.lora.merge"
APART = "trainer.v1.trainer_mode=separate_async"
#: Inputs of q_proj and v_proj in Qwen2.5 1.5B, 3B, 7B, 14B and 32B (both 5,120).
HIDDEN_SIZES = [1536, 2048, 3584, 5120]
PUBLISHED_RATE = 5e-6


@pytest.mark.parametrize(
    ("platform", "merged"), [("cpu", True), ("gpu", False), ("gpu_sdpa", False), ("megatron", False)]
)
@pytest.mark.parametrize("name", ["recipes/rag_r1/grpo", "recipes/demo/grpo"])
def test_the_platform_says_whether_adapters_are_merged(name, platform, merged):
    assert composed(name, f"platform={platform}").actor_rollout_ref.model.lora.merge is merged


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_with_adapters_keeps_its_weights_in_bf16_on_a_gpu_and_in_fp32_on_a_cpu(name):
    for platform, dtype in (("gpu", "bf16"), ("gpu_sdpa", "bf16"), ("cpu", "fp32")):
        config = composed(name, f"platform={platform}")
        parts = (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref)
        assert [part.fsdp_config.model_dtype for part in parts] == [dtype, dtype]
        assert [*check_adapters(config)] == []


@pytest.mark.parametrize(
    ("overrides", "level", "key"),
    [
        (["platform=cpu", f"{MERGE}=false"], "error", MERGE),
        ([f"{MERGE}=true"], "warning", MERGE),
        ([APART], "error", MERGE),
        ([APART, f"{MERGE}=true"], "warning", MERGE),
        (["actor_rollout_ref.rollout.load_format=dummy"], "error", "actor_rollout_ref.rollout.load_format"),
    ],
)
def test_adapters_that_do_not_reach_the_engine_as_they_are_are_reported(overrides, level, key):
    (problem,) = check_adapters(composed(RECIPES[0], *overrides))
    assert (problem.level, problem.where) == (level, key)


ONE_GPU = ["trainer.nnodes=1", "trainer.n_gpus_per_node=1"]


def test_one_gpu_needs_adapters_that_are_not_gathered_by_layers():
    """tests/plugin/test_fsdp1_one_process.py has the error that it would end with."""
    layered = "actor_rollout_ref.rollout.layered_summon"
    (problem,) = check_adapters(composed(RECIPES[0], *ONE_GPU))
    assert (problem.level, problem.where) == ("error", layered)
    for override in (f"{layered}=false", "actor_rollout_ref.actor.strategy=fsdp2"):
        assert [*check_adapters(composed(RECIPES[0], *ONE_GPU, override))] == []


def test_a_peft_with_which_vllm_would_get_no_adapters_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adapters, "version_of", lambda name: "0.21.2")
    (problem,) = check_adapters(composed(RECIPES[0]))
    assert problem.level == "error" and "0.21.2" in problem.what and "peft<0.20" in problem.remedy
    for override in ("actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.model.lora_rank=0"):
        assert [*check_adapters(composed(RECIPES[0], override))] == []


def test_megatron_with_a_rank_that_it_does_not_read_is_refused():
    rank = ["platform=megatron", "actor_rollout_ref.model.lora_rank=8"]
    (problem,) = check_adapters(composed("recipes/rag_r1/grpo", *rank))
    assert problem.where == "actor_rollout_ref.model.lora_rank"
    assert [
        *check_adapters(composed("recipes/rag_r1/grpo", *rank, "actor_rollout_ref.model.lora.rank=8"))
    ] == []


def test_fsdp_with_a_rank_that_it_does_not_read_is_refused():
    """veRL would train all weights, and build no reference."""
    rank = "actor_rollout_ref.model.lora.rank=8"
    problems = check_adapters(composed("recipes/hardware/one_gpu_80_grpo", rank))
    assert [(problem.level, problem.where) for problem in problems] == [("error", rank.partition("=")[0])]
    assert [*check_adapters(composed("recipes/hardware/one_gpu_80_grpo", rank.replace("8", "32")))] == []


def test_adapters_are_not_exported_as_a_model():
    contents = "actor_rollout_ref.actor.checkpoint.save_contents"
    (problem,) = check_adapters(composed(RECIPES[0], f"{contents}=[model,optimizer,extra,hf_model]"))
    assert (problem.level, problem.where) == ("warning", contents)


def test_without_adapters_merging_does_not_matter():
    assert [*check_adapters(composed("recipes/rag_r1/grpo", f"{MERGE}=true", APART))] == []


class Updates:
    """A training of a policy's adapters, made and cast by veRL's own engine from a recipe's configuration: a
    Qwen2 of one layer with the width of a real one, policy gradients of random advantages, veRL's
    optimizer."""

    def __init__(self, config, hidden: int, **optim):
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.config.optimizer import build_optimizer
        from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

        torch.manual_seed(0)
        heads = hidden // 128
        shape = {"hidden_size": hidden, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 512}
        groups = {"num_attention_heads": heads, "num_key_value_heads": math.gcd(heads, 8)}
        policy = Qwen2ForCausalLM(Qwen2Config(**shape, **groups, tie_word_embeddings=True))
        training = config.actor_rollout_ref
        model = {"target_parameters": None, "lora_adapter_path": None, **training.model}
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[training.actor.fsdp_config.model_dtype]
        engine = SimpleNamespace(model_config=SimpleNamespace(**model))
        self.policy = FSDPEngine._build_lora_module(engine, policy.to(dtype))
        self.adapters = {n: p for n, p in self.policy.named_parameters() if p.requires_grad}
        settings = omega_conf_to_dataclass({**training.actor.optim, **optim})
        self.optimizer = build_optimizer(self.policy.parameters(), settings)

    def step(self) -> dict[str, float]:
        """One update; of each matrix, A and B, the share of its values that it changed."""
        before = {name: value.detach().clone() for name, value in self.adapters.items()}
        tokens = torch.randint(0, 512, (16, 32))
        log_probs = torch.log_softmax(self.policy(tokens).logits.float()[:, :-1], -1)
        chosen = log_probs.gather(-1, tokens[:, 1:, None]).squeeze(-1)
        loss = -(torch.randn(16, 1) * chosen).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        shares = {}
        for matrix in ("A", "B"):
            of = [n for n in self.adapters if f"lora_{matrix}." in n]
            changed = sum((self.adapters[n] != before[n]).sum().item() for n in of)
            shares[matrix] = changed / sum(self.adapters[n].numel() for n in of)
        return shares


@pytest.mark.parametrize("hidden", HIDDEN_SIZES)
def test_an_update_changes_the_adapters_bf16_values(hidden):
    """B begins as zeros, and until it has moved A has no gradient: the first update is of B, the second of
    both."""
    training = Updates(composed(RECIPES[0]), hidden)
    assert {value.dtype for value in training.adapters.values()} == {torch.bfloat16}
    first, second = training.step(), training.step()
    assert first["B"] >= 0.9 and first["A"] == 0
    assert second["A"] >= 0.9 and second["B"] >= 0.9


@pytest.mark.parametrize("hidden", [HIDDEN_SIZES[0], HIDDEN_SIZES[-1]])
def test_at_the_published_rate_an_update_of_a_is_rounded_away(hidden):
    training = Updates(composed(RECIPES[0]), hidden, lr=PUBLISHED_RATE)
    training.step()
    assert training.step()["A"] < 0.2


def test_on_a_cpu_where_the_weights_are_fp32_the_published_rate_would_do():
    training = Updates(composed(RECIPES[0], "platform=cpu"), 1536, lr=PUBLISHED_RATE)
    training.step()
    assert training.step()["A"] >= 0.9


def test_after_a_few_updates_nearly_all_values_have_moved_and_a_part_of_them_goes_on_in_each():
    """Later updates are smaller, since gradients that differ in sign cancel in Adam's mean."""
    training = Updates(composed(RECIPES[0]), HIDDEN_SIZES[0])
    start = {name: value.detach().clone() for name, value in training.adapters.items()}
    later = [training.step() for _ in range(8)][-1]
    moved = [(value != start[name]).float().mean().item() for name, value in training.adapters.items()]
    assert min(moved) >= 0.9
    assert later["A"] >= 0.1 and later["B"] >= 0.9
