"""Loads the critic's model with the attention implementation that its configuration names.

veRL loads a value model with ``attn_implementation="flash_attention_2"``, regardless of ``override_config``
(verl/utils/model.py, `load_valuehead_model`). So PPO could not run without flash-attn, which is the case on a
CPU, and on a GPU for which it is not compiled. Engines with `OwnAttentionMixin` read
``critic.model.override_config.attn_implementation`` instead.

veRL has no hook for this function, so the mixin overrides the engine's method that calls it. The method
loads every rank's model in full, and applies neither Liger kernels nor fused kernels to the critic.

Importing this module registers such an engine for NVIDIA GPUs, under veRL's key for engines of a vendor,
which take precedence over veRL's. rag_r1/plugin/__init__.py imports it only if flash-attn is missing.
"""

from __future__ import annotations

import torch
from transformers import AutoModelForTokenClassification
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead


class OwnAttentionMixin:
    """Mixin that loads the critic's model with the attention that its configuration names.

    In the bases of an engine it must precede `FSDPEngineWithValueHead`.
    """

    def _build_module(self) -> torch.nn.Module:
        """Return the model with a head that gives one value for each token. Raises the errors of
        transformers if the model has no class for token classification."""
        config = self.model_config.hf_config
        config.num_labels = 1
        config.classifier_dropout = 0.0
        config.summary_dropout_prob = 0.0
        dtype = PrecisionType.to_dtype(self.engine_config.model_dtype or "fp32")
        module = AutoModelForTokenClassification.from_pretrained(
            self.model_config.local_path,
            dtype=dtype,
            config=config,
            # veRL has made this configuration with `override_config.attn_implementation` (HFModelConfig).
            attn_implementation=config._attn_implementation,
            trust_remote_code=self.model_config.trust_remote_code,
        )
        apply_monkey_patch(
            model=module,
            use_remove_padding=self.use_remove_padding,
            ulysses_sp_size=self.ulysses_sequence_parallel_size,
        )
        module.to(dtype)
        if self.model_config.enable_gradient_checkpointing:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return module


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cuda", vendor="nvidia")
class CUDAEngineWithValueHead(OwnAttentionMixin, FSDPEngineWithValueHead):
    """veRL's FSDP value-model engine (critic) on NVIDIA GPUs without flash-attn."""
