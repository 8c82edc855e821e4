"""Loads the critic's model with the attention implementation that its configuration names.

veRL loads a value model with ``attn_implementation="flash_attention_2"``, regardless of ``override_config``
(verl/utils/model.py, `load_valuehead_model`). So PPO could not run without flash-attn, which is the case on a
CPU, and on a GPU for which it is not compiled. Engines with `OwnAttentionMixin` read
``critic.model.override_config.attn_implementation`` instead.

Importing this module registers such an engine for NVIDIA GPUs, under veRL's key for engines of a vendor,
which take precedence over veRL's. rag_r1/plugin/__init__.py imports it only if flash-attn is missing.
"""

from __future__ import annotations

import torch
import verl.utils.model as verl_model
from transformers import AutoModelForTokenClassification, PretrainedConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead


class OwnAttentionMixin:
    """Mixin that loads the critic's model as veRL does, but with the attention that its configuration names.
    In the bases of an engine it must precede `FSDPEngineWithValueHead`."""

    def _build_module(self) -> torch.nn.Module:
        """Returns the model with a head that gives one value for each token. veRL's method, which also
        applies the other options of the model, calls our function in the place of its own."""
        verls_function = verl_model.load_valuehead_model
        verl_model.load_valuehead_model = _load_value_model
        try:
            return super()._build_module()
        finally:
            verl_model.load_valuehead_model = verls_function


def _load_value_model(
    local_path: str, torch_dtype: torch.dtype, model_config: PretrainedConfig, trust_remote_code: bool
) -> torch.nn.Module:
    """Loads a model that transformers can load with a head for token classification. veRL's function, of the
    same signature, falls back to a model of trl for others; this one raises the errors of transformers."""
    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        # veRL has made this configuration with `override_config.attn_implementation` (HFModelConfig).
        attn_implementation=model_config._attn_implementation,
        trust_remote_code=trust_remote_code,
    )


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="nvidia")
class CUDAEngineWithValueHead(OwnAttentionMixin, FSDPEngineWithValueHead):
    """veRL's FSDP value-model engine (critic) on NVIDIA GPUs without flash-attn."""
