"""Checks weight files without reading the weights: which tensors they contain, and whether they are complete.

A safetensors file begins with the length of a JSON header in eight bytes, followed by the header, which
states where each tensor ends. This reveals, before anything is started, a download that was cut off, a
pointer left by Git LFS in place of a file, and a missing shard. The header also has the shape of each tensor,
so a config.json of another model is found as well.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.inference.model_folders.model_config import model_config
from rag_r1.io.bounded_json import read_json, read_json_file
from rag_r1.io.errors import DataError
from rag_r1.io.ordinary_files import open_ordinary
from rag_r1.runs.errors import RunError

#: Length of the longest header that safetensors allows.
_MAX_HEADER_BYTES = 100_000_000
#: First bytes of a file written by torch.save: a zip archive, or a pickle before torch 1.6.
_TORCH_PREFIXES = (b"PK", b"\x80")
#: Most JSON values of a header.
_MAX_VALUES = 10_000_000
_INDEX = "model.safetensors.index.json"
#: The input embedding of the decoders that this project trains, and the prefix of a layer's tensors.
_EMBEDDING = "model.embed_tokens.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def tensors_of(file: Path) -> dict[str, Any]:
    """Return the header's entry of each tensor (`shape`, `dtype`, `data_offsets`) by its name. Raises
    DataError if the file is not a complete safetensors file, and OSError."""
    try:
        with open_ordinary(file) as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = read_json(stream.read(length), _MAX_VALUES) if length <= _MAX_HEADER_BYTES else None
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise DataError(f"{file} is not a file of weights in safetensors") from error
    if file.stat().st_size != end:
        raise DataError(f"{file} is not whole: it has {file.stat().st_size:,} bytes of {end:,}")
    return tensors


def check_weights(folder: Path) -> None:
    """Raise RunError for the first weight file of a Hugging Face model that is missing or incomplete, and if
    the weights have other sizes than config.json says. Of a file of torch only the first bytes are read, and
    a folder without weights passes (`has_weights`)."""
    tensors: dict[str, Any] = {}
    try:
        index = read_json_file(folder / _INDEX) if (folder / _INDEX).is_file() else {}
        indexed = {folder / str(name) for name in index.get("weight_map", {}).values()}
        for file in sorted({*folder.glob("*.safetensors"), *indexed}):
            tensors |= tensors_of(file)
        for file in folder.glob("pytorch_model*.bin"):
            with open_ordinary(file) as stream:
                if not stream.read(2).startswith(_TORCH_PREFIXES):
                    raise DataError(f"{file} is not a file of weights of torch")
    except (OSError, ValueError, AttributeError) as error:
        reason = error if isinstance(error, DataError) else f"the weights of {folder} cannot be read: {error}"
        raise RunError(f"{reason}: copy or download the model again, or give another folder") from error
    if difference := _difference_from_config(tensors, model_config(folder)):
        raise RunError(
            f"{folder / 'config.json'} does not describe the weights beside it: {difference}: copy or "
            "download the model again, or give another folder"
        )


def _difference_from_config(tensors: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Return the first size in which config.json differs from the tensors; None if they agree, or if the
    tensors do not have the names of a plain decoder."""
    shape = tensors.get(_EMBEDDING, {}).get("shape")
    layers = {match[1] for name in tensors if (match := _LAYER.match(name))}
    in_weights = {"num_hidden_layers": len(layers) or None}
    # The weights of DeepSeek-V3 and GLM-4.5 may have further layers, for multi-token prediction.
    sizes = (config.get("num_hidden_layers"), config.get("num_nextn_predict_layers"))
    if all(isinstance(size, int) for size in sizes) and len(layers) == sum(sizes):
        in_weights["num_hidden_layers"] = sizes[0]
    if isinstance(shape, list) and len(shape) == 2:
        in_weights |= {"vocab_size": shape[0], "hidden_size": shape[1]}
    for key, size in in_weights.items():
        if size is not None and isinstance(config.get(key), int) and config[key] != size:
            return f"{key} is {config[key]} there, and {size} in the weights"
    return None
