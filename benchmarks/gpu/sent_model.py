"""Transformers' own model with the weights and adapters that an engine sends to vLLM, in 32 bits.

Its log-probs are what the engine's would be if what computes them were what vLLM holds, up to the rounding of
the engine's own arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from benchmarks.gpu.engine import LoneEngine

#: What PEFT's configuration decides of a forward pass.
_KEYS = ("r", "lora_alpha", "target_modules")


def sent_log_probs(engine: LoneEngine, folder: Path, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Log-probs of the rows' tokens from the second on; `folder`: the model's, for its config.json."""
    model = _sent_model(engine, folder)
    return [_log_probs(model, row) for row in rows]


def _sent_model(engine: LoneEngine, folder: Path) -> torch.nn.Module:
    """The model that the engine sends to vLLM: base weights and adapters, loaded by transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    weights, config = engine.sent(base=True)
    base = {_plain(name): weight.float().cpu() for name, weight in weights.items() if "lora_" not in name}
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    _load(model, base, set(model.state_dict()) - tied)
    assert config is not None  # the recipes send adapters unmerged
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **{key: config[key] for key in _KEYS}))
    adapters, _ = engine.sent(base=False)
    values = {_peft(name): value.float().cpu() for name, value in adapters.items()}
    _load(adapted, values, {name for name in adapted.state_dict() if ".lora_" in name})
    return adapted.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _plain(name: str) -> str:
    return name.replace("base_model.model.", "").replace(".base_layer", "")


def _peft(name: str) -> str:
    return name if ".default." in name else name.replace(".weight", ".default.weight")


def _load(model: torch.nn.Module, weights: dict[str, torch.Tensor], names: set[str]) -> None:
    """Raises ValueError if one of the weights `names` is not sent, or another one is."""
    unknown = model.load_state_dict(weights, strict=False).unexpected_keys
    missing = sorted(names - set(weights))
    if unknown or missing:
        raise ValueError(f"the engine does not send {missing[:3]}, and sends {unknown[:3]}")


@torch.inference_mode()
def _log_probs(model: torch.nn.Module, row: torch.Tensor) -> torch.Tensor:
    row, base = row.to(model.device), model.get_base_model()
    # Not through its own forward, of whose class veRL makes one that computes no logits.
    logits = base.get_output_embeddings()(base.model(row[None, :-1]).last_hidden_state)[0].float()
    return logits.log_softmax(-1).gather(-1, row[1:, None])[:, 0].cpu()
