"""FSDP engines for the device "cpu".

veRL registers its FSDP engines for "cuda" and "npu" (verl/workers/engine/fsdp/transformer_impl.py,
`FSDPEngineWithLMHead`, `FSDPEngineWithValueHead`). Their code runs on a CPU as well, except in two places
that the classes below work around:

- With FSDP2 a forward-only engine (the reference policy) always gets ``CPUOffloadPolicy(pin_memory=True)``
  (the same file, `_build_fsdp_module`). Pinning needs an accelerator, and there is no device to offload from.
- The value model is loaded with ``attn_implementation="flash_attention_2"`` (rag_r1/plugin/value_model.py).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from rag_r1.plugin.cpu.trained_positions import TrainedPositionsMixin
from rag_r1.plugin.value_model import OwnAttentionMixin
from rag_r1.system.cores import trainer_threads


class _CPUEngineMixin:
    """Mixin with the changes for a CPU that both engines need.

    Ray gives every actor one OpenMP thread. Here the workers of the trainer share the cores, as many as the
    model can use (rag_r1/system/cores.py); `RAG_R1_TRAINING_THREADS` overrides the number of threads of each.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        share = trainer_threads(Path(self.model_config.local_path), torch.distributed.get_world_size())
        torch.set_num_threads(int(os.environ.get("RAG_R1_TRAINING_THREADS") or share))

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Shard a forward-only module as if it were trained, which avoids the policy that pins memory."""
        engine_config = self.engine_config
        self.engine_config = replace(engine_config, forward_only=False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = engine_config


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithLMHead(_CPUEngineMixin, TrainedPositionsMixin, FSDPEngineWithLMHead):
    """veRL's FSDP language-model engine (actor, reference) on a CPU."""


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithValueHead(_CPUEngineMixin, OwnAttentionMixin, FSDPEngineWithValueHead):
    """veRL's FSDP value-model engine (critic) on a CPU."""
