"""What a row of a data file must hold to be of use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def row_fault(row: Mapping[str, Any]) -> str | None:
    """What makes a row useless for training, or None. Such a row trains nothing and does not end a run."""
    info = row.get("extra_info") or {}
    if not isinstance(info.get("question"), str) or not info["question"].strip():
        return "extra_info.question is empty"
    reward_model = row.get("reward_model") or {}
    truth = reward_model.get("ground_truth")
    target = truth.get("target") if isinstance(truth, Mapping) else truth
    golds = [target] if isinstance(target, str) else target
    if not golds or not all(isinstance(gold, str) and gold.strip() for gold in golds):
        return "reward_model.ground_truth.target is empty"
    return None


def usable_prompt(prompt: Any) -> bool:
    """A list of messages with a role and a text. A row that has none is left out (`plugin/dataset.py`)."""
    return bool(prompt) and all(
        isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in prompt
    )
