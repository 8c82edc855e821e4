"""The settings of a run: its folder, its sizes, and the folders of models and data.

Every worker process gets the same plan, as JSON. A `miniature` runs the same code in sizes for two cores of a
CPU.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rag_r1.system.gpu_driver import gpu_memory
from rag_r1.training.preflight.memory.estimate import H100_BYTES


@dataclass(frozen=True)
class Plan:
    """The settings of a run."""

    #: The folder OUT, for cells, logs and runs.
    out: Path
    #: A folder with one folder for each size of model, such as `7B`.
    models: Path
    miniature: bool = False
    #: Whether missing models are made with random weights.
    random_weights: bool = False
    #: The folder of the model of recipes/real_small; None: the phase fetches the model as a package of pip.
    small_model: Path | None = None
    #: HotpotQA's passages for recipes/real_small; not needed with `small_data`.
    corpus: Path | None = None
    #: The data of recipes/real_small, if its README's commands were run before.
    small_data: Path | None = None
    #: Memory of the GPU, in bytes; without a GPU that of the preflight's estimates.
    gpu_bytes: float = H100_BYTES

    @classmethod
    def of(cls, out: Path, models: Path | None = None, **values: Any) -> Plan:
        """Make a plan for this machine, with absolute paths; by default the models are in OUT/models.

        `values` are further fields of the plan.
        """
        gpu = {} if values.get("miniature") else {"gpu_bytes": gpu_memory() or H100_BYTES}
        paths = {key: value.resolve() for key, value in values.items() if isinstance(value, Path)}
        return cls(out.resolve(), (models or out / "models").resolve(), **{**gpu, **values, **paths})

    @property
    def platform(self) -> str:
        """The override that adapts a recipe to this machine."""
        return "platform=cpu" if self.miniature else "platform=gpu_sdpa"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from the text that `to_json` returns."""
        values = json.loads(text)
        paths = [field.name for field in fields(cls) if "Path" in str(field.type)]
        return cls(**values | {name: Path(values[name]) for name in paths if values[name] is not None})

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(asdict(self), default=str)
