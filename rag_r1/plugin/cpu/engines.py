"""FSDP engines for the device "cpu".

veRL registers its FSDP engines for "cuda" and "npu" (verl/workers/engine/fsdp/transformer_impl.py, lines 1143
and 1594). The code runs on a CPU unchanged, except in two places that the classes below work around:

- a forward-only engine (the reference policy) is always given ``CPUOffloadPolicy(pin_memory=True)``
  (transformer_impl.py, lines 463-468); pinning needs an accelerator, and there is no device to offload from;
- the value model is loaded with ``attn_implementation="flash_attention_2"`` (verl/utils/model.py, line 649).
"""

from __future__ import annotations

import os
from dataclasses import replace

import torch
from transformers import AutoModelForTokenClassification
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead


class _OnCPU:
    """What both engines do differently on a CPU.

    Ray gives every actor one OpenMP thread, which is best for vLLM's worker. The training workers share all
    cores but one, which is reserved for the retrieval server and everything else: OpenMP threads spin while
    they wait for each other, and on two busy cores two threads take ten times as long as one.
    `RAG_R1_TRAINING_THREADS` overrides the number.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        share = (usable_cores() - 1) // torch.distributed.get_world_size()
        torch.set_num_threads(int(os.environ.get("RAG_R1_TRAINING_THREADS") or max(1, share)))

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Shard a forward-only module like a trained one, without the offload policy that pins memory."""
        engine_config = self.engine_config
        self.engine_config = replace(engine_config, forward_only=False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = engine_config


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithLMHead(_OnCPU, FSDPEngineWithLMHead):
    """veRL's FSDP language-model engine (actor, reference) on a CPU."""


@EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")
class CPUEngineWithValueHead(_OnCPU, FSDPEngineWithValueHead):
    """veRL's FSDP value-model engine (critic) on a CPU."""

    def _build_module(self) -> torch.nn.Module:
        config = self.model_config.hf_config
        config.num_labels = 1
        config.classifier_dropout = 0.0
        dtype = PrecisionType.to_dtype(self.engine_config.model_dtype or "fp32")
        module = AutoModelForTokenClassification.from_pretrained(
            self.model_config.local_path,
            dtype=dtype,
            config=config,
            attn_implementation="sdpa",
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
