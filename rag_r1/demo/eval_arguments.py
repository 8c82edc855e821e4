"""Makes the arguments of `rag-r1 eval` for a demo policy, with the limits of the demo's recipes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rag_r1.config.recipes import RECIPES
from rag_r1.demo.world import prompt_file
from rag_r1.evaluation.eval_arguments import EvalArguments

#: Turns the cache of searches off, which would hide how long a search takes.
NO_CACHE = "rag_r1.retriever.cache_size=0"


def demo_eval_arguments(
    model: Path, questions: Path, protocol: str, url: str, out: Path, *overrides: str
) -> EvalArguments:
    """Return the arguments of an evaluation that plays questions in the same way as the demo's validation.

    `url` is the address of the retrieval server. `overrides` (`key=value`) change the recipe's configuration.
    """
    settings = _settings(protocol)
    return EvalArguments(
        model=str(model),
        questions=[questions],
        protocol=protocol,
        prompt=str(prompt_file(protocol)),
        retriever_url=url,
        max_prompt_tokens=settings["data"]["max_prompt_length"],
        max_response_tokens=settings["data"]["max_response_length"],
        out=out,
        overrides=[*limit_keys(settings["rag_r1"]), *overrides],  # of one key, the last counts
    )


def limit_keys(settings: Mapping[str, Any]) -> list[str]:
    """Convert the limits of agent and retriever in a recipe's block `rag_r1` to overrides `key=value`."""
    return [
        f"rag_r1.{section}.{name}={value}"
        for section in ("agent", "retriever")
        for name, value in settings[section].items()
    ]


def _settings(protocol: str) -> dict[str, dict[str, Any]]:
    """Read the blocks `rag_r1` and `data` of the demo's recipes for a protocol.

    Unlike in Hydra, a section such as `rag_r1.retriever` of the second recipe replaces that of the first one.
    So the second recipe must repeat the keys of its sections that the first one sets, as it does.
    """
    settings: dict[str, dict[str, Any]] = {}
    for name in ("_common", *(["_r1_searcher"] if protocol == "r1_searcher" else [])):
        recipe = yaml.safe_load((RECIPES / "demo" / f"{name}.yaml").read_text(encoding="utf-8"))
        for section in ("rag_r1", "data"):
            settings[section] = {**settings.get(section, {}), **recipe.get(section, {})}
    return settings
