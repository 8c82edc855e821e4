"""Command lines of `rag-r1 eval`, and the prompt of the demo's policies."""

from __future__ import annotations

from pathlib import Path

PROMPT = Path(__file__).parents[2] / "rag_r1" / "demo" / "prompt.txt"


def command_words(*more: object, **flags: object) -> list[str]:
    """`--name value` for each flag with a value, and the words behind them."""
    pairs = [(f"--{name.replace('_', '-')}", value) for name, value in flags.items() if value is not None]
    return [str(word) for word in (*(word for pair in pairs for word in pair), *more)]
