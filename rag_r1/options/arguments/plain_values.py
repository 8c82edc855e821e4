"""Converts plain values, as YAML and JSON have them, to those that the fields of a declaration accept.

For a list `recipe`, a switch `two_times`, a text `heat` and a path `out`,

    {"recipe": "bread", "two-times": true, "heat": 9, "out": null}

becomes

    {"recipe": ["bread"], "two_times": True, "heat": "9"}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.options.arguments.errors import ArgumentsError, wrong_value
from rag_r1.options.arguments.fields import Fields, flag_of, presentation, takes_several


def from_plain(values: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return values from YAML or JSON in the form that the fields accept.

    A number or path becomes the word that it is on a command line, and a single item of a list becomes a
    list. Null is left out, so that the default applies. Keys may contain hyphens, and be former names;
    unknown ones are kept, for the declaration to refuse. Raises ArgumentsError with all values that no
    command line could express, such as true for a text or a text for a switch, and all keys that are given
    twice.
    """
    parsed, faults = split_plain(values, fields)
    if faults:
        raise ArgumentsError("; ".join(faults.values()), faults, faults)
    return parsed


def split_plain(values: Mapping[str, Any], fields: Fields) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the right values like `from_plain`, and messages about the wrong ones by flag."""
    names = {flag_of(old): name for name, field in fields.items() if (old := presentation(field)["old"])}
    names |= {flag_of(name): name for name in fields}
    parsed: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for key, value in values.items():
        name = names.get(flag_of(key), str(key).replace("-", "_"))
        if name in parsed:
            faults[flag_of(name)] = f"argument {flag_of(name)}: given twice: leave out one"
            continue
        if value is None and name in fields:
            continue
        if (field := fields.get(name)) is not None:
            is_flag = field.annotation is bool
            items = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(item, bool) != is_flag or isinstance(item, Mapping) for item in items):
                faults[flag_of(name)] = wrong_value(name, field, value)
                continue
            if not is_flag:
                items = [str(item) if isinstance(item, int | float | Path) else item for item in items]
                is_list = takes_several(field) or isinstance(value, list | tuple)
                value = items if is_list else items[0]
        parsed[name] = value
    return {name: value for name, value in parsed.items() if flag_of(name) not in faults}, faults
