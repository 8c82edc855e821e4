"""The engine over nf4: it trains, sends, saves and resumes as a model with the dequantised weights would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install 'rag-r1[nf4]'")
if torch.cuda.is_available():
    pytest.skip("these tests are for the engine on a CPU", allow_module_level=True)

from peft import LoraConfig, get_peft_model
from transformers import Qwen2ForCausalLM

from tests.plugin.nf4.small_engine import ROWS, adapters, batch, log_probs, loss, make_engine, train_step

pytestmark = pytest.mark.slow  # an engine takes a second

ROOT = Path(__file__).parents[3]


@pytest.fixture
def engine(worker, qwen):
    return lambda **options: make_engine(qwen, **options)


def dequantised(engine, folder: str) -> Qwen2ForCausalLM:
    """Transformers' own model with the weights that the engine sends to vLLM."""
    sent, _ = engine.get_per_tensor_param(base_sync_done=False)
    weights = {name.replace(".base_layer", ""): weight for name, weight in sent}
    return loaded(folder, weights)


def loaded(folder: str, weights: dict[str, torch.Tensor]) -> Qwen2ForCausalLM:
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    missing = model.load_state_dict(weights, strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys, (
        "tied to the embeddings"
    )
    return model


def with_adapters(model: Qwen2ForCausalLM, engine) -> torch.nn.Module:
    """PEFT over a plain model, with the adapters that the engine sends to vLLM."""
    sent, config = engine.get_per_tensor_param(base_sync_done=True)
    settings = {key: config[key] for key in ("r", "lora_alpha", "target_modules")}
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    values = {name.replace(".weight", ".default.weight"): value for name, value in sent}
    assert model.load_state_dict(values, strict=False).unexpected_keys == []
    return model


def row_log_probs(model: torch.nn.Module, row: list[int]) -> torch.Tensor:
    logits = model(torch.tensor([row])).logits[0, :-1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(row[1:])[:, None])[:, 0]


def test_quantised_are_the_linear_layers_and_the_adapters_have_32_bits(engine):
    module = engine().module
    quantised = [name for name, p in module.named_parameters() if hasattr(p, "quant_state")]
    assert len(quantised) == 2 * 7 and all(".layers." in name for name in quantised)
    assert {p.dtype for p in module.parameters() if p.requires_grad} == {torch.float32}


def test_gradients_of_adapters_are_those_over_the_dequantised_weights(engine, qwen):
    """After two steps, in which both A and B have moved."""
    trained = engine()
    for _ in range(2):
        train_step(trained, ROWS)
    plain = with_adapters(dequantised(trained, qwen), trained)
    with trained.train_mode():
        trained.optimizer_zero_grad()
        trained.forward_backward_batch(batch(ROWS), loss)
        of_engine = {n: p.grad.clone() for n, p in trained.module.named_parameters() if p.grad is not None}
    tokens = sum(len(row) - 1 for row in ROWS)
    (-sum(row_log_probs(plain, row).sum() for row in ROWS) / tokens).backward()
    of_plain = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    assert of_engine.keys() == of_plain.keys() and len(of_plain) == 2 * 14
    for name, gradient in of_plain.items():
        assert torch.allclose(of_engine[name], gradient, atol=1e-6), name
    assert max(gradient.abs().max() for gradient in of_plain.values()) > 1e-3


@pytest.mark.parametrize("offload", [False, True], ids=["kept", "offloaded"])
def test_log_probs_are_those_of_what_vllm_is_sent(engine, qwen, offload):
    trained = engine(offload=offload)
    for _ in range(3):
        train_step(trained, ROWS)
    plain = with_adapters(dequantised(trained, qwen), trained)
    for row, values in zip(ROWS, log_probs(trained, ROWS), strict=True):
        assert torch.allclose(values, row_log_probs(plain, row), atol=1e-4)


def test_log_probs_are_those_of_the_merged_weights_and_not_of_the_original_model(engine, qwen):
    trained = engine(merge=True)
    for _ in range(3):
        train_step(trained, ROWS)
    sent, config = trained.get_per_tensor_param(base_sync_done=True)
    assert config is None
    merged, original = loaded(qwen, dict(sent)), Qwen2ForCausalLM.from_pretrained(qwen)
    for row, values in zip(ROWS, log_probs(trained, ROWS), strict=True):
        assert torch.allclose(values, row_log_probs(merged, row), atol=1e-4)
        assert not torch.allclose(values, row_log_probs(original, row), atol=1e-2)


def test_the_reference_is_the_policy_without_its_adapters(engine, qwen):
    trained = engine()
    plain = dequantised(trained, qwen)
    for _ in range(3):
        train_step(trained, ROWS)
    with trained.disable_adapter():
        values = log_probs(trained, ROWS)
    for row, of_row in zip(ROWS, values, strict=True):
        assert torch.allclose(of_row, row_log_probs(plain, row), atol=1e-4)


def test_weights_are_the_same_after_generating_log_probs_and_training(engine):
    """On a CPU with AVX512-BF16 bitsandbytes would repack them in eval mode."""
    trained = engine()
    before = dict(trained.get_per_tensor_param(base_sync_done=False)[0])
    log_probs(trained, ROWS)
    train_step(trained, ROWS)
    after = dict(trained.get_per_tensor_param(base_sync_done=False)[0])
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_resumed_training_is_bit_equal(engine, tmp_path):
    straight = engine(seed=1)
    train_step(straight, ROWS)
    straight.save_checkpoint(str(tmp_path), global_step=1)
    norm = train_step(straight, ROWS)
    resumed = engine(seed=2)
    resumed.load_checkpoint(str(tmp_path), del_local_after_load=False)
    assert train_step(resumed, ROWS) == norm
    for name, value in adapters(straight).items():
        assert torch.equal(value, adapters(resumed)[name]), name


def test_a_checkpoint_has_the_adapters_and_a_config_without_quantisation(engine, tmp_path):
    engine().save_checkpoint(str(tmp_path), global_step=1)
    saved = torch.load(tmp_path / "model_world_size_1_rank_0.pt", weights_only=True)
    assert saved and all(".lora_" in name for name in saved)
    assert "quantization_config" not in (tmp_path / "huggingface" / "config.json").read_text()


def test_without_adapters_the_engine_is_not_made(engine):
    with pytest.raises(ValueError, match="lora_rank above 0"):
        engine(rank=0)


# --- several ranks, and veRL's registry, in processes of their own


def run_ranks(qwen: str, out: Path, ranks: int, port: int) -> list[dict]:
    base = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    base |= {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.plugin.nf4.small_engine", qwen, str(out)]
    processes = [
        subprocess.Popen(
            command,
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=500)
            assert process.returncode == 0, errors.decode()[-3000:]
    finally:
        for process in processes:
            process.kill()
    return [torch.load(out / f"{ranks}_{rank}.pt", weights_only=True) for rank in range(ranks)]


def test_two_ranks_train_as_one(engine, qwen, tmp_path, free_port):
    one = engine()
    before = adapters(one)
    for _ in range(2):
        train_step(one, ROWS)
    first, second = run_ranks(qwen, tmp_path, 2, free_port())
    for name, value in adapters(one).items():
        assert torch.equal(first["before"][name], second["before"][name]), "the first rank's adapters"
        assert torch.equal(first["after"][name], second["after"][name])
        assert torch.allclose(first["after"][name], value, atol=1e-6), name
        assert torch.equal(first["before"][name], before[name])
    assert any(not torch.equal(before[name], first["after"][name]) for name in before)


def test_veRL_makes_this_engine_where_the_module_is_named_and_its_own_for_a_critic(tmp_path):
    code = """
import verl
from verl.utils.import_utils import import_external_libs
from verl.workers.engine import EngineRegistry
before = EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__
import_external_libs("rag_r1.plugin.nf4.register")
import_external_libs("rag_r1.plugin.nf4.register")
names = [EngineRegistry.get_engine_cls(kind, "fsdp2").__name__ for kind in ("language_model", "value_model")]
import os
os.environ.update(VERL_ENGINE_DEVICE="cuda", VERL_ENGINE_VENDOR="nvidia")
print(before, *names, EngineRegistry.get_engine_cls("language_model", "fsdp").__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=500, check=True
    )
    names = done.stdout.split()[-4:]
    assert names == ["CPUEngineWithLMHead", "CPUEngineOverNF4", "CPUEngineWithValueHead", "CUDAEngineOverNF4"]
