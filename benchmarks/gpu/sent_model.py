"""Computes log-probs with transformers' model and the weights and adapters that an engine sends to vLLM.

The model computes in 32 bits. Its log-probs differ from those of the engine only by rounding if the engine
sends the weights with which it computes. A larger difference shows that vLLM would get other weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from benchmarks.gpu.engine import LoneEngine

#: Keys of PEFT's configuration that influence a forward pass.
_KEYS = ("r", "lora_alpha", "target_modules")


def sent_log_probs(engine: LoneEngine, folder: Path, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the log-probs of each row's tokens from the second on; `folder` is that of the base model."""
    model = _sent_model(engine, folder)
    return [_log_probs(model, row) for row in rows]


def _sent_model(engine: LoneEngine, folder: Path) -> torch.nn.Module:
    """Load the base weights and adapters that the engine sends into transformers' model."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    weights, config = engine.sent(base=True)
    base = {_base_name(name): value.float().cpu() for name, value in weights.items() if "lora_" not in name}
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    _load(model, base, set(model.state_dict()) - tied)
    assert config is not None  # the recipes send adapters unmerged
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **{key: config[key] for key in _KEYS}))
    adapters, _ = engine.sent(base=False)
    values = {_peft_name(name): value.float().cpu() for name, value in adapters.items()}
    _load(adapted, values, {name for name in adapted.state_dict() if ".lora_" in name})
    return adapted.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _base_name(name: str) -> str:
    """Return the name of a weight in the base model, without PEFT's additions."""
    return name.replace("base_model.model.", "").replace(".base_layer", "")


def _peft_name(name: str) -> str:
    """Return the name of an adapter's weight in PEFT's model."""
    return name if ".default." in name else name.replace(".weight", ".default.weight")


def _load(model: torch.nn.Module, weights: dict[str, torch.Tensor], names: set[str]) -> None:
    """Load weights into a model.

    Raises ValueError if one of `names` is missing, or if there is another one.
    """
    unknown = model.load_state_dict(weights, strict=False).unexpected_keys
    missing = sorted(names - set(weights))
    if unknown or missing:
        raise ValueError(f"the engine does not send {missing[:3]}, and sends {unknown[:3]}")


@torch.inference_mode()
def _log_probs(model: torch.nn.Module, row: torch.Tensor) -> torch.Tensor:
    """Return the log-probs of a row's tokens from the second on."""
    row, base = row.to(model.device), model.get_base_model()
    # The model's forward is not used, since veRL replaces it in the class by one without logits.
    logits = base.get_output_embeddings()(base.model(row[None, :-1]).last_hidden_state)[0].float()
    return logits.log_softmax(-1).gather(-1, row[1:, None])[:, 0].cpu()
