"""The CPU engine computes log-probabilities of the trained tokens only, equal to those of each row alone."""

from __future__ import annotations

from functools import partial

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("this machine has a GPU: its engine is veRL's own", allow_module_level=True)

import verl  # noqa: F401  (loads the plugin)
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from transformers import Qwen2ForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry
from verl.workers.utils.losses import sft_loss
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

from rag_r1.plugin.cpu.packed_attention import PACKED_SDPA
from rag_r1.plugin.cpu.trained_positions import trained_positions

#: Rows of (prompt, response, flags of the response).
ROWS = [
    ([1, 5, 9], [2, 7, 30, 11], [1, 1, 0, 1]),
    ([3], [3, 8], [0, 1]),
    ([20, 7, 1, 9], [9, 2, 4, 6, 8], [1, 0, 0, 0, 1]),
]
SETTINGS = {
    "use_remove_padding": True,
    "use_fused_kernels": True,
    "use_dynamic_bsz": False,
    "temperature": 1.0,
    "calculate_entropy": True,
}

rows_of_agents = st.lists(
    st.tuples(st.integers(1, 4), st.lists(st.integers(0, 1), min_size=1, max_size=6)), min_size=1, max_size=4
).map(lambda rows: [([1] * prompt, [2] * len(flags), flags) for prompt, flags in rows])


def nested(rows: list[list[int]]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(map(torch.tensor, rows)), layout=torch.jagged)


def fine_tuning_batch(rows) -> TensorDict:
    """What veRL's SFT trainer gives an engine: flags for all tokens of a row."""
    tensors = {
        "input_ids": nested([prompt + response for prompt, response, _ in rows]),
        "position_ids": nested([list(range(len(prompt + response))) for prompt, response, _ in rows]),
        "loss_mask": nested([[0] * len(prompt) + flags for prompt, _, flags in rows]),
    }
    return with_settings(TensorDict(tensors, batch_size=[len(rows)]))


def reinforcement_batch(rows) -> TensorDict:
    """What veRL's PPO trainer gives an engine: prompts padded in front, responses and their flags behind."""
    prompt_width, width = (max(len(row[part]) for row in rows) for part in (0, 1))
    front = lambda values: [0] * (prompt_width - len(values)) + values  # noqa: E731
    behind = lambda values: values + [0] * (width - len(values))  # noqa: E731
    present = [front([1] * len(p)) + behind([1] * len(r)) for p, r, _ in rows]
    tensors = {
        "prompts": torch.tensor([front(prompt) for prompt, _, _ in rows]),
        "responses": torch.tensor([behind(response) for _, response, _ in rows]),
        "input_ids": torch.tensor([front(prompt) + behind(response) for prompt, response, _ in rows]),
        "attention_mask": torch.tensor(present),
        "position_ids": (torch.tensor(present).cumsum(dim=1) - 1).clamp(min=0),
        "response_mask": torch.tensor([behind(flags) for _, _, flags in rows]),
    }
    return with_settings(left_right_2_no_padding(TensorDict(tensors, batch_size=[len(rows)])))


def with_settings(batch: TensorDict) -> TensorDict:
    tu.assign_non_tensor(batch, **SETTINGS, micro_batch_size_per_gpu=len(batch))
    return batch


def expected_positions(rows) -> list[int]:
    """Positions, in the joined rows, before a trained token of a response."""
    flags = [flag for prompt, _, flags in rows for flag in [0] * len(prompt) + flags]
    return [number - 1 for number, flag in enumerate(flags) if flag] or [0]


@given(rows_of_agents)
def test_the_positions_are_those_before_trained_tokens_in_batches_of_both_trainers(rows):
    for make_batch in (fine_tuning_batch, reinforcement_batch):
        assert trained_positions(make_batch(rows)).tolist() == expected_positions(rows)


@given(rows_of_agents)
def test_responses_may_also_be_rows_of_different_lengths(rows):
    batch = fine_tuning_batch(rows)
    batch["loss_mask"] = nested([flags for _, _, flags in rows])
    assert trained_positions(batch).tolist() == expected_positions(rows)


@pytest.fixture
def engine(lone_worker, model_folder, monkeypatch):
    # The engine replaces this function of the class, for all models of this process.
    monkeypatch.setattr(Qwen2ForCausalLM, "forward", Qwen2ForCausalLM.forward)
    initialize_global_process_group_ray(timeout_second=60)
    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    engine = EngineRegistry.new(
        "language_model",
        "fsdp2",
        model_config=HFModelConfig(
            path=model_folder, load_tokenizer=False, use_remove_padding=True, use_fused_kernels=True,
            fused_kernel_options={"impl_backend": "torch"}, enable_gradient_checkpointing=False,
            override_config={"attn_implementation": PACKED_SDPA},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2", mixed_precision=fp32, model_dtype="fp32", use_torch_compile=False,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=1),
        checkpoint_config=None,
    )  # fmt: skip
    engine.initialize()
    yield engine
    torch.distributed.destroy_process_group()


def alone(model, prompt, response) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of the response's tokens."""
    hidden = model.model(torch.tensor([prompt + response])).last_hidden_state[0, len(prompt) - 1 : -1]
    log_probs = model.lm_head(hidden).log_softmax(dim=-1)
    chosen = log_probs.gather(1, torch.tensor(response)[:, None]).squeeze(1)
    return chosen, -(log_probs.exp() * log_probs).sum(dim=-1)


@pytest.mark.slow
def test_fine_tuning_has_the_loss_and_gradients_of_the_rows_alone(engine, model_folder):
    model = Qwen2ForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    weighted = [(alone(model, p, r)[0] * torch.tensor(flags)).sum() for p, r, flags in ROWS]
    loss = -sum(weighted) / sum(sum(flags) for _, _, flags in ROWS)
    loss.backward()
    with engine.train_mode():
        engine.optimizer_zero_grad()
        output = engine.forward_backward_batch(fine_tuning_batch(ROWS), partial(sft_loss, None))
        assert sum(output["loss"]) == pytest.approx(loss.item(), abs=1e-5)
        theirs = dict(model.named_parameters())
        for name, parameter in engine.module.named_parameters():
            gradient = parameter.grad.full_tensor()
            torch.testing.assert_close(gradient, theirs[name].grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
def test_reinforcement_learning_reads_the_trained_tokens_and_zeros_elsewhere(engine, model_folder):
    model = Qwen2ForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    batch = reinforcement_batch(ROWS)
    with engine.eval_mode():
        output = engine.forward_backward_batch(batch, None, forward_only=True)["model_output"]
    for name, part in (("log_probs", 0), ("entropy", 1)):
        padded = no_padding_2_padding(output[name], batch)
        for number, (prompt, response, flags) in enumerate(ROWS):
            with torch.no_grad():
                expected = alone(model, prompt, response)[part] * torch.tensor(flags)
            torch.testing.assert_close(padded[number, : len(response)], expected, rtol=1e-4, atol=1e-5)
