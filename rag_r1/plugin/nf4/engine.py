"""veRL's FSDP language-model engine over weights in nf4.

Only adapters are trained, in 32 bits. They are small, so nothing is sharded: each rank has all weights, and
the adapters' gradients are averaged before a step, as FSDP does. Five methods of veRL's engine are
overridden:

- `_build_module` loads the model in nf4.
- `_build_lora_module` keeps the adapters in 32 bits; veRL would give them the dtype of the first frozen
  weight.
- `_build_fsdp_module` does not wrap the module, and copies the first rank's adapters to all ranks.
- `optimizer_step` averages the gradients.
- `get_per_tensor_param` sends vLLM the weights with which the actor computes: first the dequantised weights
  and then only the adapters or, with `lora.merge`, the merged weights each time. veRL's own merge would
  quantise the sum again, and lose more than the adapters have learned.

Offloading, checkpoints and the reference policy (the model without its adapters) are veRL's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from peft import get_peft_model_state_dict
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import replace_lora_wrapper
from verl.utils.model import convert_weight_keys, get_hf_auto_model_class
from verl.utils.torch_dtypes import PrecisionType

from rag_r1.inference.nf4.weights import load_nf4, weight_readers


class NF4Mixin:
    """Mixin that trains adapters over weights in nf4. In the bases of an engine it must precede an FSDP
    engine for language models."""

    @property
    def _compute_dtype(self) -> torch.dtype:
        """The dtype in which the model computes, as with FSDP: bf16 unless the configuration sets one."""
        return PrecisionType.to_dtype((self.engine_config.mixed_precision or {}).get("param_dtype", "bf16"))

    def _build_module(self) -> torch.nn.Module:
        """Return the model in nf4. Raises ValueError if there are no adapters to train."""
        if not self._is_lora or self.engine_config.forward_only:
            raise ValueError(
                "actor_rollout_ref.model.external_lib=rag_r1.plugin.nf4.register trains adapters only: set "
                "actor_rollout_ref.model.lora_rank above 0"
            )
        config = self.model_config
        module = load_nf4(
            get_hf_auto_model_class(hf_config=config.hf_config),
            config.local_path,
            self._compute_dtype,
            get_device_id(),
            config=config.hf_config,
            trust_remote_code=config.trust_remote_code,
        )
        apply_monkey_patch(
            model=module,
            use_remove_padding=self.use_remove_padding,
            ulysses_sp_size=self.ulysses_sequence_parallel_size,
            use_fused_kernels=config.use_fused_kernels,
            fused_kernels_backend=(config.fused_kernel_options or {}).get("impl_backend"),
        )
        if config.enable_gradient_checkpointing:
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return module

    def _build_lora_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Add the adapters as veRL does, and convert them to 32 bits."""
        module = super()._build_lora_module(module)
        for adapter in _trained_parameters(module):
            adapter.data = adapter.data.float()
        return module

    def _build_fsdp_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module itself, with the first rank's adapters on all ranks."""
        self._autocast_dtype = self._compute_dtype
        for adapter in _trained_parameters(module):
            dist.broadcast(adapter.data, src=0)
        return module

    def optimizer_step(self) -> float:
        """Average the gradients over the ranks and take a step. Returns their norm before clipping."""
        ranks = dist.get_world_size()
        for adapter in _trained_parameters(self.module) if ranks > 1 else ():
            if adapter.grad is not None:
                dist.all_reduce(adapter.grad)
                adapter.grad /= ranks
        return super().optimizer_step()

    def get_per_tensor_param(
        self, layered_summon: bool = False, base_sync_done: bool = False, **options: Any
    ) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any] | None]:
        """Return the names and weights to send to vLLM, and PEFT's configuration, None for merged weights.

        With `lora.merge` these are the merged weights. Otherwise they are the dequantised weights or, if vLLM
        has these (`base_sync_done`), the adapters.
        """
        if self.model_config.lora.get("merge"):
            return self._weights_to_send(merged=True), None
        config = self.module.peft_config["default"]
        if not base_sync_done:
            return self._weights_to_send(merged=False), config.to_dict()
        adapters = convert_weight_keys(get_peft_model_state_dict(self.module), self.module)
        device = get_device_id()
        return ((name, value.detach().to(device)) for name, value in adapters.items()), config.to_dict()

    def _weights_to_send(self, *, merged: bool) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each weight with which the actor computes. It is dequantised when it is sent, so only one
        dequantised weight exists at a time, and offloaded weights stay where they are."""
        model, config = self.module.base_model.model, self.module.peft_config["default"]
        readers = convert_weight_keys(weight_readers(model, get_device_id(), merged=merged), model)
        for name, reader in readers.items():
            yield (name if merged else replace_lora_wrapper(name, config)), reader()


def _trained_parameters(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """Return the parameters that are trained, which are those of the adapters."""
    return (parameter for parameter in module.parameters() if parameter.requires_grad)
