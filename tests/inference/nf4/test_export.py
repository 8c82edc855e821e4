"""`rag-r1 model export-nf4`: the exported model is the policy that was trained, in one folder or in two."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install 'rag-r1[nf4]'")

from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from rag_r1.inference.nf4.export import main
from rag_r1.inference.nf4.weights import load_nf4, weight_readers
from tests.fakes.small_qwen import save_small_qwen

pytestmark = pytest.mark.slow

IDS = torch.tensor([[1, 5, 9, 2, 7, 30, 12, 4]])


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return save_small_qwen(tmp_path_factory.mktemp("base"))


@pytest.fixture(params=["float32", "bfloat16"])
def trained(request, base, tmp_path):
    """A policy over nf4, and its checkpoint as veRL writes it (tests/plugin/nf4 saves one by veRL itself)."""
    torch.manual_seed(1)
    model = load_nf4(AutoModelForCausalLM, str(base), getattr(torch, request.param), "cpu")
    targets = ["q_proj", "v_proj", "down_proj"]
    policy = get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=targets)
    )
    for name, value in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.3)
    actor = tmp_path / "run" / "global_step_3" / "actor"
    actor.mkdir(parents=True)
    saved = {name: value for name, value in policy.state_dict().items() if ".lora_" in name}
    torch.save(saved, actor / "model_world_size_1_rank_0.pt")
    (actor / "lora_train_meta.json").write_text(
        json.dumps({"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"})
    )
    model.config.save_pretrained(actor / "huggingface")
    return policy.eval(), actor.parent


def export(step: Path, base: Path, out: Path, *words: str) -> int:
    return main([str(step), "--base", str(base), "--out", str(out), *words])


@torch.no_grad()
def log_probs(model: torch.nn.Module) -> torch.Tensor:
    return model(IDS).logits.float().log_softmax(-1)


def exported_policy(out: Path, dtype: str = "auto") -> torch.nn.Module:
    base = AutoModelForCausalLM.from_pretrained(out / "base", dtype=dtype)
    return PeftModel.from_pretrained(base, out / "adapter").eval()


def test_base_and_adapter_are_the_policy_that_was_trained(trained, base, tmp_path):
    """To the bit in their values. In 16 bits PEFT adds adapters over quantised and over plain layers in
    another order, which rounds differently."""
    policy, step = trained
    assert export(step, base, tmp_path / "out") == 0
    exported = exported_policy(tmp_path / "out")
    assert exported.dtype == policy.dtype
    of_policy, of_export = (weight_readers(model.base_model.model, "cpu") for model in (policy, exported))
    assert of_policy.keys() == of_export.keys()
    assert all(torch.equal(of_policy[name](), of_export[name]()) for name in of_policy)
    adapters = [
        {name: value for name, value in model.named_parameters() if ".lora_" in name}
        for model in (policy, exported)
    ]
    assert len(adapters[0]) == 2 * 2 * 3
    assert all(torch.equal(value, adapters[1][name].float()) for name, value in adapters[0].items())
    difference = (log_probs(exported) - log_probs(policy)).abs()
    assert difference.max() < 1e-4 if policy.dtype == torch.float32 else difference.mean() < 0.05


def test_the_merged_model_is_base_and_adapter_in_32_bits(trained, base, tmp_path):
    _, step = trained
    assert export(step, base, tmp_path / "two") == 0
    assert export(step, base, tmp_path / "one", "--merged") == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert merged.dtype == torch.float32
    assert torch.allclose(
        log_probs(merged), log_probs(exported_policy(tmp_path / "two", "float32")), atol=1e-4
    )


def test_over_the_original_weights_the_adapters_are_another_policy(trained, base, tmp_path):
    policy, step = trained
    export(step, base, tmp_path / "out")
    wrong = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "out" / "adapter"
    )
    assert not torch.allclose(log_probs(wrong.eval()), log_probs(policy), atol=0.1)


def test_each_weight_is_read_once_and_as_a_tensor_of_its_own(base):
    model = load_nf4(AutoModelForCausalLM, str(base), torch.float32, "cpu")
    readers = weight_readers(model, "cpu")
    names = set(Qwen2ForCausalLM.from_pretrained(base).state_dict())
    assert set(readers) == names - {"lm_head.weight"}, "tied to the embeddings"
    readers["model.norm.weight"]().zero_()
    assert model.model.norm.weight.abs().sum() > 0


# --- what is refused


def test_another_model_a_folder_without_adapters_and_one_that_exists_are_refused(
    trained, base, tmp_path, capsys
):
    _, step = trained
    config = Qwen2Config(vocab_size=60, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "other")
    config.save_pretrained(tmp_path / "bare")
    (tmp_path / "there").mkdir()
    for words, said in (
        ((step, tmp_path / "other", tmp_path / "out"), "another vocab_size"),
        ((step, tmp_path / "bare", tmp_path / "out"), "the folder holds no weights"),
        ((tmp_path, base, tmp_path / "out"), "not a checkpoint of adapters"),
        ((step, base, tmp_path / "there"), "exists already"),
    ):
        assert export(*words) == 1
        assert said in capsys.readouterr().err
    (step / "actor" / "lora_train_meta.json").unlink()
    assert export(step, base, tmp_path / "out") == 1 and "has no adapters" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_with_the_whole_model_is_refused(trained, base, tmp_path, capsys):
    _, step = trained
    file = step / "actor" / "model_world_size_1_rank_0.pt"
    torch.save({**torch.load(file, weights_only=True), "model.norm.weight": torch.ones(64)}, file)
    assert export(step, base, tmp_path / "out") == 1
    assert "holds the whole model" in capsys.readouterr().err


class Program:
    """Unpickled it would make a folder."""

    def __reduce__(self):
        return os.mkdir, ("made_by_a_checkpoint",)


def test_a_checkpoint_that_is_a_program_is_not_run(trained, base, tmp_path, capsys, monkeypatch):
    _, step = trained
    monkeypatch.chdir(tmp_path)
    torch.save({"a.lora_A.default.weight": Program()}, step / "actor" / "model_world_size_1_rank_0.pt")
    assert export(step, base, tmp_path / "out") == 1
    assert "cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "made_by_a_checkpoint").exists()
