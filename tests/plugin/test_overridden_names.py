"""What our classes override of veRL's, as Python sees it, is what the contract's scan of the source finds."""

from __future__ import annotations

from importlib import import_module
from inspect import getmembers, isclass
from types import FunctionType

import pytest

from tests.contract.contacts import Scan
from tests.contract.verl_source import installed

pytestmark = pytest.mark.slow  # imports the trainers, vLLM's worker extension, and the SFT trainer

MODULES = (
    "agent_loop",
    "cpu.engines",
    "cpu.platform",
    "cpu.vllm_worker",
    "cpu.weight_transfer",
    "dataset",
    "reward_manager",
    "sampler",
    "session_trainer",
    "value_model",
)


def overridden(made: type) -> set[tuple[str, str]]:
    """(module, name) of the functions and properties of veRL's that a class, or a mixin of it, overrides."""
    ours = [one for one in made.__mro__ if one.__module__.startswith("rag_r1.")]
    theirs = [one for one in made.__mro__ if one.__module__.startswith("verl.")]
    found = set()
    for one in ours:
        for name, value in vars(one).items():
            written = isinstance(value, FunctionType | property | classmethod | staticmethod)
            if written and (owner := next((their for their in theirs if name in vars(their)), None)):
                found.add((owner.__module__, f"{owner.__qualname__}.{name}"))
    return found


def test_the_scan_finds_what_the_classes_override():
    modules = [import_module(f"rag_r1.plugin.{name}") for name in MODULES]
    classes = {made for module in modules for _, made in getmembers(module, isclass)}
    live = {name for made in classes if made.__module__.startswith("rag_r1.") for name in overridden(made)}
    scan = Scan(installed())
    scanned = {name for name, uses in scan.contacts.items() if "overridden" in uses}
    variables = {
        ("verl.plugin.platform.platform_base", f"PlatformBase.{n}_name") for n in ("device", "vendor")
    }
    assert scanned - variables == live
