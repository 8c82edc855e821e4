"""After each transfer vLLM on a CPU computes with the actor's weights, its head included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.plugin.reloaded_engine import PROMPT, TOKENS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_llama_that_was_sent_to_vllm_has_the_log_probs_of_the_model(tied, tmp_path):
    """vLLM gives Llama's head a module of its own also where it is tied to the embedding."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():  # larger than at a start, so that no token is like another
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)

    command = [sys.executable, "-m", "tests.plugin.reloaded_engine", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    pairs = json.loads(done.stdout.splitlines()[-1])
    tokens = [token for token, _ in pairs]
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1)
    assert len(tokens) == TOKENS and expected.argmax(-1).tolist() == tokens
    for place, (token, logprob) in enumerate(pairs):
        assert logprob == pytest.approx(expected[place, token].item(), abs=1e-4)
