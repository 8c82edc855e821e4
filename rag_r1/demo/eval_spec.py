"""The command line of `rag-r1 eval` for a demo policy, with the limits of the demo's validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rag_r1.config.recipes import RECIPES

_PROMPT = Path(__file__).parent / "prompt.txt"
#: Asked for once and never again, so a cache would only hide the time of a search.
NO_CACHE = "rag_r1.retriever.cache_size=0"


def eval_words(model: Path, data: Path, protocol: str, url: str, out: Path, *more: str) -> list[str]:
    """The words after `rag-r1 eval` that play the questions `data` as the demo's validation does."""
    settings = _settings(protocol)
    own = _PROMPT.with_name(f"prompt_{protocol}.txt")
    given = {
        "--model": model,
        "--data": data,
        "--protocol": protocol,
        "--prompt": own if own.exists() else _PROMPT,
        "--retriever-url": url,
        "--max-prompt-tokens": settings["data"]["max_prompt_length"],
        "--max-response-tokens": settings["data"]["max_response_length"],
        "--out": out,
    }
    keys = [
        f"rag_r1.{section}.{name}={value}"
        for section in ("agent", "retriever")
        for name, value in settings["rag_r1"][section].items()
    ]
    return [*(str(word) for pair in given.items() for word in pair), *more, *keys]


def _settings(protocol: str) -> dict[str, dict[str, Any]]:
    """The demo's settings for a protocol, as the recipes have them."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("_common", *(["_r1_searcher"] if protocol == "r1_searcher" else [])):
        recipe = yaml.safe_load((RECIPES / "demo" / f"{name}.yaml").read_text(encoding="utf-8"))
        for section in ("rag_r1", "data"):
            found[section] = {**found.get(section, {}), **recipe.get(section, {})}
    return found
