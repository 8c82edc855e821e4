"""Measures whether the result of a text has the same bits alone and in a batch (determinism.py).

After a model has been loaded, one of its linear layers of each shape multiplies some rows alone and in
batches, in the process that will encode. If OpenVINO encodes, its whole transformer processes some texts in
this way (openvino_model.py).

The probe is evidence, not proof: each of these layers multiplies about two hundred rows. If anything differs,
it is usually a single row, since libraries multiply one row (a matrix by a vector) in another way than
several rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from retrieval_server.determinism import Determinism, ProbeResult

if TYPE_CHECKING:
    import torch

    Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    MakeTexts = Callable[[tuple[int, int], torch.Generator], torch.Tensor]

#: Rows of a text: one, as in the head of a classifier, and as many as in the smallest bucket of the encoder.
_TEXT_TOKENS = (1, 8)
#: Sizes of the batches; each batch consists of the last texts.
_BATCH_SIZES = (2, 5, 16)
#: Positions of the texts that are also multiplied alone. They include the last text of every batch.
_SINGLE_TEXTS = (0, 7, 14, 15)


def probe_model(model: torch.nn.Module) -> ProbeResult:
    """Measure what holds for the matrix products of this model, on its device and in its data type.

    One linear layer of each shape is tried, but only on a CPU. Other devices choose kernels by the size of
    the batch, so that a few sizes say little about the others.
    """
    import torch

    linear = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    layers = {layer.weight.shape: layer for layer in linear}
    fallback = Determinism.ORDER
    if any(layer.weight.dtype != torch.float32 for layer in layers.values()):
        fallback = Determinism.NONE
    if any(layer.weight.device.type != "cpu" for layer in layers.values()):
        return ProbeResult(fallback)
    digests = []
    for layer in layers.values():
        if (digest := product_digest(layer.weight, layer.bias)) is None:
            return ProbeResult(fallback)
        digests.append(digest)
    fingerprint = hashlib.sha256("".join(digests).encode()).hexdigest()
    return ProbeResult(Determinism.BITS, fingerprint, fallback)


def product_digest(
    weight: torch.Tensor, bias: torch.Tensor | None = None, multiply: Multiply | None = None
) -> str | None:
    """Return a hash of the products of some rows with `weight`, (outputs, inputs).

    The rows are the same in every process. The result is None if a row has other bits in a batch than alone.
    `multiply` replaces torch's linear function.
    """
    import torch

    product = multiply or torch.nn.functional.linear

    def make_texts(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
        return torch.randn((*shape, weight.shape[1]), generator=generator).to(weight.dtype)

    return stable_digest(make_texts, lambda texts: product(texts, weight, bias))


def stable_digest(make_texts: MakeTexts, compute: Callable[[torch.Tensor], torch.Tensor]) -> str | None:
    """Return a hash of the results of `compute` for single texts; None if a text has other bits in a batch.

    `make_texts` creates the texts, (texts, tokens, ...), from the numbers of texts and tokens and a
    generator. They are the same in every process.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    digest = hashlib.sha256()
    with torch.inference_mode():
        for tokens in _TEXT_TOKENS:
            texts = make_texts((max(_BATCH_SIZES), tokens), generator)
            alone = {i: compute(texts[i : i + 1])[0] for i in _SINGLE_TEXTS}
            for size in _BATCH_SIZES:
                first_text = len(texts) - size
                batch = compute(texts[first_text:])
                in_batch = ((i - first_text, row) for i, row in alone.items() if i >= first_text)
                if not all(torch.equal(batch[i], row) for i, row in in_batch):
                    return None
            for row in alone.values():
                digest.update(row.float().numpy().tobytes())
    return digest.hexdigest()
