"""Parts of a comparison of trainings over several seeds: its arguments, its finished runs and its page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from rag_r1.io.atomic_files import write_text


def unique_values(flag: str) -> AfterValidator:
    """A validator of a list that refuses repeated values, naming the flag."""

    def check(values: list[Any]) -> list[Any]:
        if len(set(values)) < len(values):
            raise ValueError(f"{flag}: each once: leave the repeated values out")
        return values

    return AfterValidator(check)


Seeds = Annotated[list[int], unique_values("--seeds")]


def short_hash(parts: Any, sort_keys: bool = False) -> str:
    """A hash of JSON values in 8 hexadecimal digits, which identifies what a run depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=sort_keys).encode()).hexdigest()[:8]


def finished_runs(out: Path, name: str, arms: Sequence[str]) -> list[dict[str, Any]]:
    """The contents of the files `out/seed*/ARM/NAME` of finished runs, by seed and in the order of the
    arms."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob(f"seed*/*/{name}")]
    return sorted(runs, key=lambda run: (run["seed"], arms.index(run["arm"])))


def write_page(path: Path, page: str, picture: str = "") -> None:
    """Write a page of Markdown and print it. `picture`: the name of its picture, for the last printed
    line."""
    write_text(path, page + "\n")
    print(f"\n{page}\n\nwritten: {path}" + (f", and {picture} beside it" if picture else ""))
