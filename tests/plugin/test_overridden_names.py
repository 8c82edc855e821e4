"""What our classes override of veRL's, as Python sees it, is what the contract's scan of the source finds."""

from __future__ import annotations

from copy import deepcopy
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
    "nf4.register",
    "reward_manager",
    "sampler",
    "session_trainer",
    "value_model",
)


def overridden(cls: type) -> set[tuple[str, str]]:
    """(module, name) of the functions and properties of veRL's that a class, or a mixin of it, overrides."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("rag_r1.")]
    theirs = [base for base in cls.__mro__ if base.__module__.startswith("verl.")]
    names = set()
    for base in ours:
        for name, value in vars(base).items():
            written = isinstance(value, FunctionType | property | classmethod | staticmethod)
            if written and (owner := next((their for their in theirs if name in vars(their)), None)):
                names.add((owner.__module__, f"{owner.__qualname__}.{name}"))
    return names


@pytest.fixture(autouse=True)
def engines_of_its_own(monkeypatch):
    """A copy of veRL's registry: nf4's engines would go before those that other tests make."""
    from verl.workers.engine import EngineRegistry

    monkeypatch.setattr(EngineRegistry, "_engines", deepcopy(EngineRegistry._engines))


def test_the_scan_finds_what_the_classes_override():
    modules = [import_module(f"rag_r1.plugin.{name}") for name in MODULES]
    classes = {cls for module in modules for _, cls in getmembers(module, isclass)}
    live = {name for cls in classes if cls.__module__.startswith("rag_r1.") for name in overridden(cls)}
    scan = Scan(installed())
    scanned = {name for name, uses in scan.contacts.items() if "overridden" in uses}
    variables = {
        ("verl.plugin.platform.platform_base", f"PlatformBase.{n}_name") for n in ("device", "vendor")
    }
    assert scanned - variables == live
