"""Reads options from a configuration, whose keys may be wrong in any way.

    read_options(Limits, {"max_turn": 3, "max_turns": 2})
        Limits(max_turns=2), and the fault that rag_r1.agent.max_turn is unknown

The class declares the options, and the key under which they usually are (declare.py). If the functions are
given another key, messages have that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_r1.options.declare import OptionFault, OptionsError, OptionsType, unknown_option


def options_from(cls: type[OptionsType], config: Mapping[str, Any], key: str | None = None) -> OptionsType:
    """Return the options with the values in `config`. `key` is the key of the options in messages, by
    default the declared one. Raises OptionsError with all faults."""
    made, faults = _read(cls, config, key or cls.options_key)
    if made is None or faults:
        raise OptionsError(faults)
    return made


def read_options(
    cls: type[OptionsType], config: Mapping[str, Any], key: str | None = None
) -> tuple[OptionsType, list[OptionFault]]:
    """Return the options like `options_from`, together with all faults instead of raising an error.

    All options must have defaults, by which wrong values are replaced. If a combination of options is wrong,
    only the option with which the message begins is replaced, and all options if that is not enough.
    """
    key = key or cls.options_key
    made, faults = _read(cls, config, key)
    if made is None:
        # For a fault of nested options, the name of the option that has them.
        wrong_names = {fault.key.removeprefix(f"{key}.").partition(".")[0] for fault in faults}
        made, _ = _read(cls, {name: config[name] for name in config if name not in wrong_names}, key)
    return cls() if made is None else made, faults


def _read(
    cls: type[OptionsType], config: Mapping[str, Any], key: str
) -> tuple[OptionsType | None, list[OptionFault]]:
    """Return the options, which are None if a value is wrong or missing, or a name unknown; and all faults.
    Names that are no texts are faults, and ignored, since names of Python arguments must be texts."""
    values = {name: value for name, value in config.items() if isinstance(name, str)}
    faults = [unknown_option(name, cls, key) for name in config if not isinstance(name, str)]
    try:
        return cls(**values), faults
    except OptionsError as error:
        return None, faults + [fault.under(cls.options_key, key) for fault in error.faults]
