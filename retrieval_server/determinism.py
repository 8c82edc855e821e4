"""Determinism: what an index guarantees about its answers under load, and the probe that measures it.

A query is encoded in one batch with whichever other queries are waiting. Whether that changes its vector
depends on the library that multiplies matrices: Intel MKL in its strict mode (encode/cpu_settings.py) gives a
row the same bits alone as in a batch on Intel CPUs, but not on AMD's; CUDA never promises it. So nothing is
assumed: when a model has been loaded, its own linear layers multiply some rows alone and in batches, in the
process that will encode; where OpenVINO encodes, its whole transformer computes some texts so
(encode/openvino_model.py). The result is a ``Determinism``, shown by ``/ready`` and in the log.

The probe is evidence, not proof: of linear layers, each multiplies some two hundred rows. A single row is the
first to differ, since libraries multiply one row (a matrix by a vector) in another way than several.

What follows the encoder needs no probe: the candidates that FAISS finds are scored again in float64, query by
query (search/vectors/faiss_search.py), and BM25 adds up the scores of a query's own words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    Make = Callable[[tuple[int, int], torch.Generator], torch.Tensor]

#: How far apart the scores of a query alone and in a batch may be where the guarantee is ``order``.
TIE = 1e-6
_TOKENS = (1, 8)  # rows of a text: one as in a classifier's head, and a bucket of the encoder
_BATCHES = (2, 5, 16)  # the last texts, as many at once
_ALONE = (0, 7, 14, 15)  # texts that are multiplied alone as well, the last of every batch among them


class Determinism(str, Enum):
    """What holds for a query's answer whatever else is in its batch; the strongest first."""

    #: The same ids and the same bits of every score.
    BITS = "bits"
    #: Scores within TIE, and the same ids in the same order, except where scores are within TIE.
    ORDER = "order"
    #: Neither: the model computes in 16 or 8 bits, and scores differ by their rounding errors.
    NONE = "none"

    def __str__(self) -> str:
        return self.value

    @property
    def meaning(self) -> str:
        """The guarantee in words, for the log."""
        return {
            Determinism.BITS: "the same ids and the same bits of every score at every load",
            Determinism.ORDER: f"the same ids at every load, except where scores are within {TIE:g}",
            Determinism.NONE: "answers may depend on the load: the model computes in 16 or 8 bits",
        }[self]


def weakest_determinism(guarantees: Iterable[Determinism]) -> Determinism:
    """The guarantee of what depends on all of these; BITS if there are none."""
    strongest_first = list(Determinism)
    return max(guarantees, key=strongest_first.index, default=Determinism.BITS)


@dataclass(frozen=True)
class ProbeResult:
    """The result of the probe in one process. With BITS, ``fingerprint`` is a hash of the products.

    A model has the same fingerprint in all processes that multiply alike. ``otherwise`` is what its data type
    allows where the bits differ after all: NONE in 16 and 8 bits.
    """

    guarantee: Determinism
    fingerprint: str = ""
    otherwise: Determinism = Determinism.ORDER

    def without_bits(self) -> ProbeResult:
        """The same where something that was not probed can change the bits."""
        return replace(self, guarantee=weakest_determinism([self.guarantee, self.otherwise]))


def combine_probes(probes: Iterable[ProbeResult]) -> Determinism:
    """The guarantee of several processes, any of which may get a query: the weakest, and ``bits`` only if
    all of them multiply alike."""
    distinct = set(probes)
    if len(distinct) > 1:
        distinct = {probe.without_bits() for probe in distinct}
    return weakest_determinism(probe.guarantee for probe in distinct)


def probe_model(model: torch.nn.Module) -> ProbeResult:
    """Find out what holds for the products of this model, on its device and in its data type.

    One linear layer of each shape is tried, on a CPU only: elsewhere kernels are chosen by the size of the
    batch, and a few sizes say little about the others.
    """
    import torch

    linear = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    layers = {layer.weight.shape: layer for layer in linear}
    otherwise = Determinism.ORDER
    if any(layer.weight.dtype != torch.float32 for layer in layers.values()):
        otherwise = Determinism.NONE
    if any(layer.weight.device.type != "cpu" for layer in layers.values()):
        return ProbeResult(otherwise)
    digests = []
    for layer in layers.values():
        if (digest := product_digest(layer.weight, layer.bias)) is None:
            return ProbeResult(otherwise)
        digests.append(digest)
    fingerprint = hashlib.sha256("".join(digests).encode()).hexdigest()
    return ProbeResult(Determinism.BITS, fingerprint, otherwise)


def product_digest(
    weight: torch.Tensor, bias: torch.Tensor | None = None, multiply: Multiply | None = None
) -> str | None:
    """A hash of rows times ``weight``, (outputs, inputs); None if a row has other bits in a batch than alone.
    The rows are the same in every process."""
    import torch

    product = multiply or torch.nn.functional.linear

    def make(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
        return torch.randn((*shape, weight.shape[1]), generator=generator).to(weight.dtype)

    return stable_digest(make, lambda texts: product(texts, weight, bias))


def stable_digest(make: Make, compute: Callable[[torch.Tensor], torch.Tensor]) -> str | None:
    """A hash of what ``compute`` gives for each text alone; None if a text has other bits in a batch.

    ``make`` gives the texts, (texts, tokens, ...), the same in every process.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    digest = hashlib.sha256()
    with torch.inference_mode():
        for tokens in _TOKENS:
            texts = make((max(_BATCHES), tokens), generator)
            alone = {i: compute(texts[i : i + 1])[0] for i in _ALONE}
            for size in _BATCHES:
                first = len(texts) - size
                batch = compute(texts[first:])
                if not all(torch.equal(batch[i - first], row) for i, row in alone.items() if i >= first):
                    return None
            for row in alone.values():
                digest.update(row.float().numpy().tobytes())
    return digest.hexdigest()
