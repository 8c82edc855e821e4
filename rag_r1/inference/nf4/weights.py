"""Loads a model with its linear layers in nf4, and reads back the weights it computes with.

bitsandbytes stores 4 bits per weight, an absolute maximum for each block of 64 weights, and quantises these
maxima to 8 bits (double quantisation). A layer multiplies with the dequantised numbers. A model that stores
these numbers in 16 or 32 bits therefore gives the same logits, and the model before quantisation does not.
The embeddings and the last layer are not quantised.

PEFT replaces a layer that has adapters by a wrapper, in which the layer itself is the `base_layer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import torch

Device = torch.device | str | int
#: The name of the original layer within PEFT's wrapper; it is left out of exported names.
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
    """Return a model in nf4 on a device, which computes in `dtype`. `model_class` is a class of transformers
    with `from_pretrained`, which receives the `options`."""
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
            # In eval mode bitsandbytes repacks weights for such a CPU, and repacked ones have no gradients.
            layer.support_avx512bf16_for_cpu = False
    return model


def weight_readers(
    model: torch.nn.Module, device: Device, *, merged: bool = False, dtype: torch.dtype | None = None
) -> dict[str, Callable[[], torch.Tensor]]:
    """Return a function for each weight that reads it as a new tensor on a device, by the weight's name in
    the model's own files.

    - `model`: the model inside PEFT's wrapper, if it has adapters
    - `merged`: whether the adapters are added to the weights, in 32 bits before rounding
    - `dtype`: the dtype of the tensors; None for the one in which the model computes
    """
    return {
        name: lambda weight=weight, wrapper=wrapper: _read(weight, wrapper, device, dtype)
        for name, weight, wrapper in _weights(model, merged)
    }


def _weights(model: torch.nn.Module, merged: bool) -> Iterator[tuple[str, torch.Tensor, Any]]:
    """Yield the name and value of each weight (tied weights once), and the wrapper whose adapters must be
    added to it, or None."""
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
    """Return the dequantised weight on a device, with the update of the wrapper's adapters if there is a
    wrapper."""
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
    """Return a copy of a weight's quantisation state on a device. bitsandbytes' own `to` would move the
    state of the weight itself."""
    moved = copy(state)
    if moved.state2 is not None:
        moved.state2 = copy(moved.state2)
    moved.to(device)
    return moved
