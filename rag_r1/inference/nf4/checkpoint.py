"""Reads the adapters that a training over nf4 saved.

Each rank writes one file of adapters, beside `lora_train_meta.json`. The adapters of all ranks are equal, so
the first rank's file is enough. The file is a pickle, from which PyTorch loads tensors only (`weights_only`).
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_r1.inference.model_folders import ADAPTER_META
from rag_r1.io.bounded_json import read_json_file
from rag_r1.io.errors import first_line_of
from rag_r1.runs.errors import RunError
from rag_r1.runs.json_lines import PARSE_ERRORS

if TYPE_CHECKING:
    from torch import Tensor

_RANK_0 = "model_world_size_*_rank_0.pt"
#: The name of the adapter within the name of a weight in memory; PEFT's own files leave it out.
_ADAPTER_NAME = ".default."


@dataclass(frozen=True)
class SavedAdapters:
    """The adapters of a checkpoint."""

    #: The tensors, by the names that PEFT's own files have.
    weights: dict[str, Tensor]
    #: LoRA's r and alpha.
    rank: int
    alpha: int
    #: The folder with the config and the tokenizer of the trained model.
    huggingface: Path

    @property
    def targets(self) -> list[str]:
        """The names of the layers that have adapters."""
        return sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in self.weights})

    def config(self, base: str) -> Any:
        """Return PEFT's configuration for these adapters over the model `base`."""
        from peft import LoraConfig, TaskType

        return LoraConfig(
            task_type=TaskType.CAUSAL_LM,
            r=self.rank,
            lora_alpha=self.alpha,
            target_modules=self.targets,
            base_model_name_or_path=base,
            inference_mode=True,
        )


def read_adapters(checkpoint: Path) -> SavedAdapters:
    """Return the adapters in a checkpoint or in its folder `actor`. Raises RunError if the checkpoint has no
    adapters or whole weights, or cannot be read."""
    import torch

    state = checkpoint / "actor" if (checkpoint / "actor").is_dir() else checkpoint
    files = sorted(state.glob(_RANK_0))
    if files and not (state / ADAPTER_META).is_file():
        raise RunError(
            f"{checkpoint} has no adapters, since its training had none (no {ADAPTER_META}): give one of a "
            "training with lora_rank, or use the model of this one as it is (`rag-r1 eval --model`)"
        )
    if len(files) != 1:
        raise RunError(
            f"{checkpoint} is not a checkpoint of adapters: give a folder global_step_N of the training"
        )
    try:
        meta = read_json_file(state / ADAPTER_META)
        rank, alpha = int(meta["r"]), int(meta["lora_alpha"])
        saved = torch.load(files[0], map_location="cpu", weights_only=True)
        weights = {name.replace(_ADAPTER_NAME, "."): value.contiguous() for name, value in saved.items()}
    except (*PARSE_ERRORS, OSError, EOFError, RuntimeError, pickle.PickleError) as error:
        raise RunError(f"{state} cannot be read ({first_line_of(error)}): give another checkpoint") from error
    if not weights or not all(".lora_" in name for name in weights):
        raise RunError(
            f"{files[0]} holds the whole model: export it with `python -m verl.model_merger merge`"
        )
    return SavedAdapters(weights, rank, alpha, state / "huggingface")
