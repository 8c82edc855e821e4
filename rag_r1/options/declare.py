"""Declares classes of typed options with limits and defaults, as frozen dataclasses.

    @options("rag_r1.agent")
    class Limits:
        #: Turns in which the policy may search.
        max_turns: Count = 4

    Limits(max_turn=3, max_turns=True)        raises OptionsError:
        unknown key rag_r1.agent.max_turn: use one of max_turns; did you mean max_turns?
        rag_r1.agent.max_turns must be a whole number of at least 0, not True

pydantic validates the objects of such a class when they are created, including by `dataclasses.replace`. All
faults are reported at once, each with the full key, the requirement and the value, unless that might be
secret. types.py has the types of options, and from_config.py reads options from a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Literal, TypeVar, dataclass_transform

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as validated_dataclass

from rag_r1.options.suggestions import did_you_mean
from rag_r1.options.types import describe_type, must_be

OptionsType = TypeVar("OptionsType")


class OptionFault(ValueError):
    """One wrong option.

    - `key`: its full key
    - `reason`: what is wrong, such as `must be a text`. It follows the key in the message.
    - `is_unknown`: whether there is no such option; then `reason` tells which there are
    """

    def __init__(self, key: str, reason: str, is_unknown: bool = False):
        super().__init__(key, reason, is_unknown)
        self.key = key
        self.reason = reason
        self.is_unknown = is_unknown

    def __str__(self) -> str:
        return f"unknown key {self.key}: {self.reason}" if self.is_unknown else f"{self.key} {self.reason}"

    def under(self, declared: str, key: str) -> OptionFault:
        """Return the fault with `key` in place of `declared` at the beginning of its key. A fault of nested
        options that are declared elsewhere stays as it is."""
        if not self.key.startswith(f"{declared}."):
            return self
        return OptionFault(key + self.key.removeprefix(declared), self.reason, self.is_unknown)


class OptionsError(ValueError):
    """One or more options are wrong; `faults` contains each of them."""

    def __init__(self, faults: list[OptionFault]):
        super().__init__(faults)
        self.faults = faults

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))


@dataclass_transform(frozen_default=True)
def options(
    key: str, *, others: Literal["forbid", "ignore"] = "forbid"
) -> Callable[[type[OptionsType]], type[OptionsType]]:
    """Return a class decorator that makes a class a frozen dataclass of options, which are read from the
    keys under `key`, its attribute `options_key`.

    `others` says how undeclared keys are treated; `ignore` is for the configuration of other programs.
    Creating an object with wrong values raises OptionsError, and with too many of them TypeError.
    """

    def declare(cls: type[OptionsType]) -> type[OptionsType]:
        made: Any = validated_dataclass(cls, frozen=True, config=ConfigDict(extra=others))
        validate = made.__init__

        @wraps(validate)
        def __init__(self: Any, /, *values: Any, **named: Any) -> None:  # a key may be `self`
            try:
                validate(self, *values, **named)
            except ValidationError as error:
                declared = option_names(made)
                if len(values) > len(declared):
                    raise TypeError(f"{cls.__name__} takes {len(declared)} values") from None
                keywords = {**dict(zip(declared, values, strict=False)), **named}
                raise OptionsError(_faults(error, made, keywords, key)) from None

        made.__init__ = __init__
        made.options_key = key
        return made

    return declare


def option_names(cls: type) -> list[str]:
    """Return the names of the declared options in order."""
    return list(cls.__pydantic_fields__)


def unknown_option(name: object, cls: type, key: str) -> OptionFault:
    """Return the fault for an option that `cls`, whose options are under `key`, does not declare. It
    suggests the most similar one."""
    names = option_names(cls)
    parts = [f"use one of {', '.join(names)}", did_you_mean(str(name), names)]
    return OptionFault(f"{key}.{name}", "; ".join(filter(None, parts)), is_unknown=True)


def _faults(error: ValidationError, cls: type, values: Mapping[str, Any], key: str) -> list[OptionFault]:
    """Return pydantic's errors as faults, one for each wrong option. Unknown keys come first."""
    declared = cls.__pydantic_fields__
    faults: dict[str, OptionFault] = {}
    for item in error.errors(include_url=False, include_input=False):
        cause = item.get("ctx", {}).get("error")
        if not item["loc"]:  # raised by a check of several options; its message begins with the name of one
            name, _, reason = str(cause).partition(" ")
            return [OptionFault(f"{key}.{name}", reason)]
        name = item["loc"][0]
        if isinstance(cause, OptionsError):  # nested options
            faults.update({fault.key: fault for fault in cause.faults})
            continue
        if isinstance(name, int):  # a positional argument
            name = list(declared)[name]
        if name not in declared:
            faults[name] = unknown_option(name, cls, key)
            continue
        field = declared[name]
        if name in values:
            reason = must_be(field.annotation, field.metadata, values[name])
        else:
            reason = f"must be given: {describe_type(field.annotation, field.metadata)}"
        faults[name] = OptionFault(f"{key}.{name}", reason)
    return sorted(faults.values(), key=lambda fault: not fault.is_unknown)
