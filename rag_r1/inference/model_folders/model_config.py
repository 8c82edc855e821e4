"""Reads the config.json of a local model, for checks that need its sizes and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rag_r1.io.bounded_json import read_json_object
from rag_r1.runs.errors import RunError


def read_model_config(folder: Path) -> dict[str, Any]:
    """Return the values in a local model's config.json by key, with those in its `text_config` where it has
    none or a null. Raises OSError or ValueError if the file cannot be used."""
    config = read_json_object(folder / "config.json")
    text_config = config.get("text_config") or {}
    if not isinstance(text_config, dict):
        raise ValueError("text_config is not a JSON object")
    return {**config, **{key: value for key, value in text_config.items() if config.get(key) is None}}


def check_causal_model(folder: Path) -> None:
    """Raise RunError for an encoder, such as BERT, which no language model can be loaded from: its
    config.json names none of the architectures that transformers has for causal language models. A model of
    a type that has no encoder passes, as does a config.json that cannot be read."""
    from transformers.models.auto import modeling_auto

    values = model_config(folder)
    names = values.get("architectures")
    if values.get("model_type") not in [*modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES]:
        return
    causal_names = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if isinstance(names, list) and names and not causal_names & set(map(str, names)):
        raise RunError(
            f"{folder} is no causal language model ({', '.join(map(str, names))} in its config.json): give "
            "another model"
        )


def model_config(folder: Path) -> dict[str, Any]:
    """Return the values of `read_model_config`; {} where that raises an error."""
    try:
        return read_model_config(folder)
    except (OSError, ValueError):
        return {}
