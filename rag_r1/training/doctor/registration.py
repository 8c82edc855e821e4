"""The check of our registrations in veRL by `rag-r1 doctor`.

veRL skips a plugin that fails to load, and only logs a message at debug level. So our registrations are
looked up in veRL's own registries after a plain `import verl`, which is what a Ray worker does. The
trainers are not looked up, since the plugin registers them only in the process of a training that uses them.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, NamedTuple

from rag_r1.system.installation import pip_command, setup_command
from rag_r1.training.doctor.findings import MISSING, Finding, ok

#: The remedy for a registration that is missing because of the installation.
SETUP = setup_command()
#: veRL's environment variable that says which plugins it loads.
_PLUGINS_VARIABLE = "VERL_USE_EXTERNAL_PLUGINS"


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
    by_name = (_agent_loop_registry, REWARD_MANAGER, POLICY_LOSS_REGISTRY, ADV_ESTIMATOR_REGISTRY)
    return _Registries(*by_name, get_platform, EngineRegistry.get_engine_cls)


def _check_registries(registries: _Registries, failures: Collection[str]) -> Iterator[Finding]:
    """Check that our parts are in veRL's registries. `failures` has the parts that have been reported
    already, under the names that rag_r1/plugin/__init__.py gives them."""
    verl_platform = registries.get_platform()
    yield ok("platform", f"{verl_platform.device_name} ({type(verl_platform).__name__})")
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
    our_engines = _our_engines(verl_platform)
    for model_type in ("language_model", "value_model"):
        our_part = our_engines.get(model_type)  # None: veRL's own engine is used
        try:
            engine = registries.get_engine_class(model_type, "fsdp2")
        except (AssertionError, ValueError):  # there is none for this device
            engine = None
        if engine and (our_part is None or engine.__module__.startswith("rag_r1.")):
            yield ok("engine", f"{model_type}: {engine.__name__}")
        elif our_part not in failures:
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
    value = os.environ.get(_PLUGINS_VARIABLE, "auto").strip().lower()
    return value != "auto" and "rag_r1" not in map(str.strip, value.split(","))


def _plugin_not_loaded() -> Finding:
    """Return the finding that veRL has not loaded the plugin, with the reason: an environment variable, or
    the error that veRL has not shown."""
    text = "not loaded by `import verl`"
    if _is_excluded():
        text += f" ({_PLUGINS_VARIABLE}={os.environ[_PLUGINS_VARIABLE]})"
        return Finding("plugin", MISSING, text, f"unset {_PLUGINS_VARIABLE}, or add rag_r1 to it")
    try:
        import_module("rag_r1.plugin")
    except Exception:
        text += f":\n{traceback.format_exc()}"
    return Finding("plugin", MISSING, text, f"{SETUP}, or fix the error above")
