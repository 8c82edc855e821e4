"""Loads a tokenizer from a folder or from the Hub, without running its code."""

from __future__ import annotations

from typing import Any

from rag_r1.sandbox.chat_template import refuse_endless_files, refuse_endless_template


def load_tokenizer(name: str) -> Any:
    """The tokenizer. Raises ValueError if it is made by code of its own, which is not run: what transformers
    would make of its files without that code may be other tokens, or if its files or its chat template exceed
    limits of time or memory. Raises whatever transformers raises."""
    refuse_endless_files(name)
    from transformers import AutoTokenizer

    # If nothing were said about remote code, transformers would ask on the terminal.
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if "AutoTokenizer" in (getattr(tokenizer, "init_kwargs", {}).get("auto_map") or {}):
        raise ValueError(
            "it is made by code of its own (auto_map in tokenizer_config.json), which is not run: give a "
            "folder whose tokenizer transformers has itself"
        )
    refuse_endless_template(tokenizer)
    return tokenizer
