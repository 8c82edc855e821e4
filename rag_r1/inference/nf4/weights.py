"""Loads a model with its linear layers in nf4, and reads back the weights that it computes with.

bitsandbytes keeps 4 bits for a weight, an absolute maximum for 64 of them, and these maxima in 8 bits (double
quantisation). A layer multiplies with the dequantised numbers: a model that has these in 16 or 32 bits gives
the same logits; the model before quantisation does not. The embeddings and the last layer are not
quantised.

PEFT puts a layer that has adapters into a wrapper, as its `base_layer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import torch

Device = torch.device | str | int
#: The part of a weight's name for the layer in PEFT's wrapper; it is left out of the exported name.
_WRAPPED = "base_layer"


def load_nf4(
    model_class: Any,
    folder: str,
    dtype: torch.dtype,
    device: Device,
    *,
    trust_remote_code: bool = False,
    **options: Any,
) -> torch.nn.Module:
    """A model in nf4 on a device, computing in `dtype`. `model_class`: a class of transformers with
    `from_pretrained`, to which `options` are passed on."""
    from transformers import BitsAndBytesConfig

    quantisation = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_quant_storage=torch.bfloat16,
    )
    model = model_class.from_pretrained(
        folder,
        dtype=dtype,
        device_map={"": device},
        quantization_config=quantisation,
        trust_remote_code=trust_remote_code,
        **options,
    )
    # A model that is saved from this config has dequantised weights.
    del model.config.quantization_config
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            # In eval mode bitsandbytes repacks weights for such a CPU; training with these has no gradients.
            layer.support_avx512bf16_for_cpu = False
    return model


def weight_readers(
    model: torch.nn.Module, device: Device, *, merged: bool = False, dtype: torch.dtype | None = None
) -> dict[str, Callable[[], torch.Tensor]]:
    """By the name of each weight in the model's own files: a function that reads it as a new tensor on a
    device, in `dtype`, or that in which the model computes. `model`: the one inside PEFT's, if it has
    adapters; `merged`: the adapters are added to it, in 32 bits before rounding."""
    return {
        name: lambda weight=weight, wrapper=wrapper: _read(weight, wrapper, device, dtype)
        for name, weight, wrapper in _weights(model, merged)
    }


def _weights(model: torch.nn.Module, merged: bool) -> Iterator[tuple[str, torch.Tensor, Any]]:
    """Yields each weight with its name, tied ones once, and the wrapper whose adapters are to be added to
    it."""
    for name, value in model.named_parameters():
        owner, _, key = name.rpartition(".")
        if ".lora_" in name:
            continue
        wrapper = None
        if owner.endswith(_WRAPPED):
            owner = owner.removesuffix(f".{_WRAPPED}")
            wrapper = model.get_submodule(owner) if merged and key == "weight" else None
        yield f"{owner}.{key}", value, wrapper


@torch.no_grad()
def _read(weight: torch.Tensor, wrapper: Any, device: Device, dtype: torch.dtype | None) -> torch.Tensor:
    """The dequantised weight on a device, with the update of the wrapper's adapters if there is a wrapper."""
    state = getattr(weight, "quant_state", None)
    if state is None:
        value = weight.detach().to(device, copy=True)
    else:
        from bitsandbytes.functional import dequantize_4bit

        value = dequantize_4bit(weight.data.to(device), _state_on(state, device))
    dtype = dtype or value.dtype
    if wrapper is None:
        return value.to(dtype)
    delta = wrapper.get_delta_weight("default").to(device, torch.float32)
    return (value.float() + delta).to(dtype)


def _state_on(state: Any, device: Device) -> Any:
    """A copy of a weight's quantisation state on a device; bitsandbytes' `to` would move the weight's own."""
    moved = copy(state)
    if moved.state2 is not None:
        moved.state2 = copy(moved.state2)
    moved.to(device)
    return moved
