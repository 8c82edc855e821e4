"""Loads a tokenizer from a folder or from the Hub, without running its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rag_r1.inference.model_folders import is_hub_name
from rag_r1.io.hub import hub_answers
from rag_r1.sandbox.chat_template import refuse_empty_tokenizer, refuse_endless_files, refuse_endless_template


def load_tokenizer(name: str) -> Any:
    """The tokenizer. Raises ValueError if it is made by code of its own, which is not run: what transformers
    would make of its files without that code may be other tokens, or if its files or its chat template exceed
    limits of time or memory. Raises whatever transformers raises."""
    if not Path(name).exists() and (name.startswith(("/", ".", "~")) or name.count("/") > 1):
        raise FileNotFoundError(f"{name}: there is no such folder")  # and no such name on the Hub
    refuse_endless_files(name)
    from transformers import AutoTokenizer

    # If nothing were said about remote code, transformers would ask on the terminal.
    tokenizer = AutoTokenizer.from_pretrained(
        name, trust_remote_code=False, local_files_only=not Path(name).exists() and not hub_answers()
    )
    if "AutoTokenizer" in (getattr(tokenizer, "init_kwargs", {}).get("auto_map") or {}):
        raise ValueError(
            "it is made by code of its own (auto_map in tokenizer_config.json), which is not run: give a "
            "folder whose tokenizer transformers has itself"
        )
    refuse_empty_tokenizer(tokenizer)
    refuse_endless_template(tokenizer)
    return tokenizer


def why_not_loaded(name: str, error: Exception) -> str:
    """Why `load_tokenizer` has failed, for a message that ends with what to give instead."""
    line = next(iter(str(error).splitlines()), "")
    if Path(name).is_dir() and not any(Path(name).glob("*[tv]o[kc]*")):  # tokenizer.json, vocab.json, ...
        return "the folder holds no tokenizer"
    if Path(name).exists():
        return f"{type(error).__name__}: {line}"
    if not is_hub_name(name):
        return "there is no such folder"
    return (
        f"it is no folder here, and the Hub does not give it ({line}): check the name and the network, or "
        f"download it where there is one (`hf download {name} --local-dir DIR`)"
    )
