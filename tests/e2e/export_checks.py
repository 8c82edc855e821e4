"""What the export of a checkpoint must give: each check raises AssertionError.

tests/e2e/test_export_checks.py spoils an exported folder and sees that a check notices.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = "<search> Who founded Ulm? </search>"

Weights = Mapping[str, torch.Tensor]


def it_is_the_same_model(exported: Path, expected: Weights, tokenizer: Path) -> None:
    """The folder loads as a model, with these weights in 16 bits, and with that tokenizer."""
    model, loading = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not loading["missing_keys"], "weights that are not there are made up when a model is loaded"
    weights = model.state_dict()
    assert set(weights) == set(expected)
    for name, weight in expected.items():
        assert torch.equal(weights[name].bfloat16(), weight.bfloat16()), name
    ids = [AutoTokenizer.from_pretrained(folder)(TEXT).input_ids for folder in (exported, tokenizer)]
    assert ids[0] == ids[1]


def a_step_changed_the_policy(after: Weights, before: Weights) -> None:
    assert any(not torch.equal(after[name], before[name]) for name in before), "one step changes the policy"
