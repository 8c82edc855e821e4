"""Helpers for comparing trainings over several seeds: their arguments, finished runs and result page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from rag_r1.io.atomic_files import write_text


def unique_values(flag: str) -> AfterValidator:
    """Return a validator that rejects a list with repeated values; its message names the flag."""

    def check(values: list[Any]) -> list[Any]:
        if len(set(values)) < len(values):
            raise ValueError(f"{flag}: each once: leave the repeated values out")
        return values

    return AfterValidator(check)


#: The type of the argument --seeds.
Seeds = Annotated[list[int], unique_values("--seeds")]


def short_hash(parts: Any, sort_keys: bool = False) -> str:
    """Return a hash of JSON values as 8 hexadecimal digits; it identifies the settings of a run. With
    `sort_keys`, it does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(parts, sort_keys=sort_keys).encode()).hexdigest()[:8]


def finished_runs(out: Path, name: str, arms: Sequence[str]) -> list[dict[str, Any]]:
    """Read the files `out/seed*/ARM/NAME` of finished runs, sorted by seed and by the order of the arms.
    Raises ValueError for a run of another arm, and OSError."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob(f"seed*/*/{name}")]
    return sorted(runs, key=lambda run: (run["seed"], arms.index(run["arm"])))


def write_page(path: Path, page: str, picture: str = "") -> None:
    """Write a page of Markdown and print it; the last line names the page's `picture`, if it has one."""
    write_text(path, page + "\n")
    print(f"\n{page}\n\nwritten: {path}" + (f", and {picture} beside it" if picture else ""))
