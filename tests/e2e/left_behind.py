"""The files that a training leaves behind and their readers, for the modules with checks (*_checks.py)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoTokenizer

from rag_r1.agent.records import records_by_step
from rag_r1.runs.processes import find_leftovers

Row = dict[str, Any]
tokenizer_of = cache(AutoTokenizer.from_pretrained)


def remaining_processes(out: Path, within_s: float = 30.0) -> list[int]:
    """The processes with the mark of OUT that do not end in time: some of Ray's end seconds after their
    training, by themselves."""
    deadline = time.monotonic() + within_s
    while (remaining := find_leftovers(out)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return remaining


@dataclass(frozen=True)
class FinishedRun:
    """A finished training: its folder, and what its settings let expect."""

    out: Path
    policy: Path  # whose tokenizer it used
    LOG: ClassVar[str] = "metrics.jsonl"

    @cached_property
    def metrics(self) -> dict[int, dict[str, float]]:
        """veRL's metrics of each step."""
        return step_metrics(self.out / self.LOG)

    @cached_property
    def trained(self) -> dict[int, list[Row]]:
        """The trajectories by step; of what was played twice, the last ones."""
        return records_by_step(self.out / "trajectories" / "train")

    @cached_property
    def rows(self) -> list[Row]:
        """What the actor was trained on."""
        return json_lines(self.out / "actor.jsonl")

    @property
    def tokenizer(self) -> Any:
        return tokenizer_of(self.policy)


def json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def step_metrics(path: Path) -> dict[int, dict[str, float]]:
    """What veRL logged of each finished step; {} without the file. A last line that is cut off (its process
    was killed, or is still writing) is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    entries = [json.loads(line) for line in lines]
    return {entry["step"]: entry["data"] for entry in entries if "search/samples" in entry["data"]}


def generated(row: Row) -> tuple[int, ...]:
    """The tokens of a row that the policy wrote."""
    return tuple(t for t, m in zip(row["responses"], row["response_mask"], strict=True) if m)


def texts_of_rows(rows: Iterable[Row], tokenizer: Any) -> Counter[str]:
    """What the policy wrote in each row."""
    return Counter(tokenizer.decode(list(generated(row)), skip_special_tokens=True) for row in rows)


def texts_of_records(records: Iterable[dict[str, Any]]) -> Counter[str]:
    """What the policy wrote in each trajectory."""
    return Counter("".join(turn["text"] for turn in record["turns"]) for record in records)


def question(record: dict[str, Any]) -> str:
    """The name of the group to which a trajectory belongs."""
    return record["id"].rpartition("#")[0]
