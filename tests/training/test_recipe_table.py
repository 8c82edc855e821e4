"""The recipes' READMEs have the lines that the composed recipes give; memory by the formula."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rag_r1.config.recipes import RECIPES, shipped_names
from rag_r1.training import recipes_command
from rag_r1.training.preflight.memory.estimate import memory_of, sft_memory_of
from rag_r1.training.preflight.memory.shape import SHAPES
from rag_r1.training.recipe_table import _rate, folder_of, recipe_tables
from tests.recipes.composed_recipes import compose_quickly, composed

FOLDERS = sorted({folder_of(name) for name in shipped_names("train", "sft")})
#: Millions of parameters, from the models' cards.
PUBLISHED = {"1.5B": 1_540, "3B": 3_090, "7B": 7_610, "14B": 14_700, "32B": 32_500, "Llama 8B": 8_030}
PUBLISHED |= {"135M": 134.5, "0.5B": 494}


def test_every_recipe_that_trains_is_found_and_no_fragment_is():
    names = shipped_names("train", "sft")
    assert {"rag_r1/grpo", "demo/ppo_mq", "agentic_rag/dapo_lora", "rag_r1/sft/qwen_7b"} <= set(names)
    assert not any(name.rpartition("/")[2].startswith("_") for name in names)
    assert {name.partition("/")[0] for name in names}.isdisjoint({"platform", "rag_r1_defaults"})


def test_a_learning_rate_keeps_its_digits():
    assert [_rate(value) for value in (1e-06, "2.5e-5", 3e-4)] == ["1e-6", "2.5e-5", "3e-4"]


@pytest.mark.full
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_readme_of_each_folder_has_the_table_of_its_recipes(folder):
    """If this fails: rag-r1 recipes table"""
    ((_, text),) = recipe_tables(compose_quickly, [folder])
    readme = (RECIPES / folder / "README.md").read_text(encoding="utf-8")
    assert text in readme, f"recipes/{folder}/README.md must have\n{text}"


@pytest.mark.slow
def test_the_memory_that_the_readme_names_for_32_billion_parameters_is_what_is_calculated():
    words = (
        "trainer.n_gpus_per_node=2",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=10240",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=10240",
    )
    need = memory_of(composed("recipes/agentic_rag/grpo_lora", *words), SHAPES["32B"])
    fused = memory_of(composed("recipes/agentic_rag/grpo_lora", *words, "platform=gpu_sdpa"), SHAPES["32B"])
    readme = (RECIPES / "agentic_rag" / "README.md").read_text(encoding="utf-8")
    assert f"{need.phase_bytes('update') / 1e9:.0f} GB in an update" in readme
    assert f"{need.phase_bytes('weights to vLLM') / 1e9:.0f} GB while weights are sent" in readme
    assert f"{need.cached_contexts:.0f} rows" in readme
    assert f"{need.host_bytes / 1e9:.0f} GB of host memory" in readme
    assert f"{fused.phase_bytes('update') / 1e9:.0f} GB with fused kernels" in readme
    with_fp32 = composed("recipes/rag_r1/grpo", "trainer.n_gpus_per_node=2")
    assert memory_of(with_fp32, SHAPES["32B"]).phase_bytes("update") > 4 * SHAPES["32B"].parameters


def test_fine_tuning_in_micro_batches_of_rows_is_estimated_with_their_longest():
    rows = ["data.use_dynamic_bsz=false", "data.micro_batch_size_per_gpu=2", "data.max_length=512"]
    config = compose_quickly("recipes/rag_r1/sft/qwen_7b", [*rows, "data.max_token_len_per_gpu=9999"])
    assert sft_memory_of(config, SHAPES["7B"]).context_tokens == 2 * 512


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "demo"])
def test_a_shape_has_the_parameters_of_its_model(name):
    shape = SHAPES[name]
    llama = not shape.biases
    make, settings = (LlamaForCausalLM, LlamaConfig) if llama else (Qwen2ForCausalLM, Qwen2Config)
    config = settings(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        counted = sum(parameter.numel() for parameter in make(config).parameters())
    assert counted == shape.parameters
    assert shape.parameters / 1e6 == pytest.approx(PUBLISHED[name], rel=0.01)


def test_the_adapters_are_those_that_peft_makes():
    from peft import LoraConfig, get_peft_model

    for targets in (["q_proj", "v_proj"], "all-linear"):
        shape = SHAPES["demo"]
        config = Qwen2Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
        )
        model = get_peft_model(Qwen2ForCausalLM(config), LoraConfig(r=4, target_modules=targets))
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert shape.adapter_parameters(4, targets) == trained


@pytest.mark.slow
def test_the_command_prints_one_recipe_with_a_size_and_overrides(capsys):
    words = ["table", "--recipe", "agentic_rag/grpo_lora", "--size", "14B", "trainer.n_gpus_per_node=2"]
    assert recipes_command.main(words) == 0
    _, _, line, _, _, _, *table = capsys.readouterr().out.strip().splitlines()
    assert line.startswith("| `agentic_rag/grpo_lora` | 14B | bf16 | rank 4, not merged | 1e-4 | 2 |")
    assert table[0].startswith("| contexts | 7.2") and table[-1].endswith("GB.")
    assert recipes_command.main([*words[:4], "3B,7B"]) == 0
    assert "contexts" not in capsys.readouterr().out, "the parts are printed for one size"
    assert recipes_command.main(["table", "--recipe", "hardware/one_gpu_80_ppo"]) == 0
    text = capsys.readouterr().out
    assert "critic 43 |" in text and "| 34.9 | 43.1 | 46.0 |" in text, "both with the recipe's small critic"
    assert recipes_command.main(["table", "--recipe", "recipes/nowhere"]) == 1
    assert "there is no recipe" in capsys.readouterr().err
    assert recipes_command.main(["table", "--recipe", "demo/grpo", "--size", "5B"]) == 1
    assert "the sizes that are known are 0.5B, 1.5B, 3B" in capsys.readouterr().err
