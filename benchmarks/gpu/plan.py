"""What one start measures with: its folder, the sizes, and where models and data are.

Every process of a measurement gets the same plan, as JSON. `miniature` has the same phases in sizes for two
cores of a CPU; everything else is the same code.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_r1.system.gpu_driver import gpu_memory

#: Bytes of a GPU where there is none, as in the preflight's estimates.
_GPU = 80e9
_FOLDERS = ("out", "models", "small_model", "small_data", "corpus")


@dataclass(frozen=True)
class Plan:
    """`models`: a folder with one folder for each size, such as `7B`; with `random_weights` those that are
    missing are made there. Of recipes/real_small: `small_model`, its model; `corpus`, HotpotQA's passages;
    `small_data`, what its README makes of them, if that was made before."""

    out: Path
    models: Path
    miniature: bool = False
    random_weights: bool = False
    small_model: Path | None = None
    corpus: Path | None = None
    small_data: Path | None = None
    gpu_bytes: float = _GPU

    @classmethod
    def of(cls, out: Path, models: Path | None = None, **values: Any) -> Plan:
        """For this machine, with absolute paths; by default the models are in OUT/models."""
        gpu = {} if values.get("miniature") else {"gpu_bytes": gpu_memory() or _GPU}
        paths = {key: value.resolve() for key, value in values.items() if isinstance(value, Path)}
        return cls(out.resolve(), (models or out / "models").resolve(), **{**gpu, **values, **paths})

    @property
    def platform(self) -> str:
        """The override that puts a recipe on this machine."""
        return "platform=cpu" if self.miniature else "platform=gpu_sdpa"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a text that `to_json` made."""
        values = json.loads(text)
        return cls(**values | {name: values[name] and Path(values[name]) for name in _FOLDERS})

    def to_json(self) -> str:
        """The plan as a text in JSON."""
        return json.dumps(asdict(self), default=str)
