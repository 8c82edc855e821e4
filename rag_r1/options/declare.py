"""Declares typed options with limits and defaults, as frozen dataclasses.

    @options("rag_r1.agent")
    class Limits:
        #: Turns in which the policy may search.
        max_turns: Count = 4

    read_options(Limits, {"max_turn": 3, "max_turns": True})[1]
        unknown key rag_r1.agent.max_turn: use one of max_turns; did you mean max_turns?
        rag_r1.agent.max_turns must be a whole number of at least 0, not True

pydantic validates the objects of such a class when they are created, including by `dataclasses.replace`. The
types below are strict: `true` is not a number, and "3" is not 3. All faults are reported at once, each with
the full key, the requirement and the value, unless that might be secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge
from pydantic import ConfigDict, Field, Strict, ValidationError
from pydantic.dataclasses import dataclass as validated_dataclass

from rag_r1.options.suggestions import did_you_mean

OptionsType = TypeVar("OptionsType")


@dataclass(frozen=True)
class Constraint:
    """States, in an annotation, what a value must be."""

    #: The requirement in the words of an error message, such as `a number above 0`.
    requirement: str
    #: Whether messages repeat a wrong value, which might be secret.
    is_shown: bool = True


#: The requirement for a value whose type has no Constraint.
_REQUIREMENTS = {
    NoneType: "null",
    bool: "true or false",
    str: "a text",
    int: "a whole number",
    float: "a number",
    Path: "a path",
}
Flag = Annotated[bool, Strict(), Constraint("true or false")]
Text = Annotated[str, Strict(), Constraint("a text")]
Count = Annotated[int, Strict(), Field(ge=0), Constraint("a whole number of at least 0")]
PositiveCount = Annotated[int, Strict(), Field(ge=1), Constraint("a whole number of at least 1")]
PositiveNumber = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False), Constraint("a number above 0")]
Seconds = Annotated[
    float, Strict(), Field(ge=0, allow_inf_nan=False), Constraint("a number of seconds of at least 0")
]
PositiveSeconds = Annotated[
    float, Strict(), Field(gt=0, allow_inf_nan=False), Constraint("a number of seconds above 0")
]


class OptionFault(ValueError):
    """One wrong option. `key` is its full key, which is also in the message."""

    def __init__(self, key: str, message: str):
        super().__init__(key, message)
        self.key = key

    def __str__(self) -> str:
        return self.args[1]


class OptionsError(ValueError):
    """One or more options are wrong; `faults` contains each of them."""

    def __init__(self, faults: list[OptionFault]):
        super().__init__(faults)
        self.faults = faults

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))


def options(
    key: str, *, others: Literal["forbid", "ignore"] = "forbid"
) -> Callable[[type[OptionsType]], type[OptionsType]]:
    """Return a class decorator that makes a class a frozen dataclass of options, which are read from the
    keys under `key`.

    `others` says how undeclared keys are treated; `ignore` is for the configuration of other programs.
    Creating an object with wrong values raises OptionsError.
    """

    def declare(cls: type[OptionsType]) -> type[OptionsType]:
        made: Any = validated_dataclass(cls, frozen=True, config=ConfigDict(extra=others))
        validate = made.__init__

        @wraps(validate)
        def __init__(self: Any, *values: Any, **named: Any) -> None:
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


def options_from(cls: type[OptionsType], config: Mapping[str, Any], key: str | None = None) -> OptionsType:
    """Return the options with the values in `config`. `key` is the key of the options in messages, by
    default the declared one. Raises OptionsError with all faults."""
    key = key or cls.options_key
    values, faults = _by_name(cls, config, key)
    try:
        made = cls(**values)
    except OptionsError as error:
        faults += [_under(fault, cls.options_key, key) for fault in error.faults]
    if faults:
        raise OptionsError(faults)
    return made


def read_options(
    cls: type[OptionsType], config: Mapping[str, Any], key: str | None = None
) -> tuple[OptionsType, list[OptionFault]]:
    """Return the options like `options_from`, together with all faults instead of raising an error.

    Wrong values are replaced by their defaults. If a combination of options is wrong, only the option with
    which the message begins is replaced, and all options if that is not enough. All must have defaults.
    """
    key = key or cls.options_key
    values, faults = _by_name(cls, config, key)
    try:
        return cls(**values), faults
    except OptionsError as error:
        # For a fault of nested options, the name of the option that has them.
        names = {fault.key.removeprefix(f"{cls.options_key}.").partition(".")[0] for fault in error.faults}
        faults += [_under(fault, cls.options_key, key) for fault in error.faults]
    try:
        return cls(**{name: value for name, value in values.items() if name not in names}), faults
    except OptionsError:
        return cls(), faults


def _by_name(cls: type, config: Mapping[str, Any], key: str) -> tuple[dict[str, Any], list[OptionFault]]:
    """Return the values whose keys are texts, as names of Python arguments must be, and a fault for each
    other key."""
    values = {name: value for name, value in config.items() if isinstance(name, str)}
    return values, [_unknown(name, cls, key) for name in config if not isinstance(name, str)]


def _under(fault: OptionFault, declared: str, key: str) -> OptionFault:
    """Return the fault with the actual key of the options in place of the declared key."""
    if key == declared:
        return fault
    return OptionFault(fault.key.replace(declared, key, 1), str(fault).replace(f"{declared}.", f"{key}.", 1))


def _faults(error: ValidationError, cls: type, values: Mapping[str, Any], key: str) -> list[OptionFault]:
    """Return pydantic's errors as faults, one for each wrong option. Unknown keys come first."""
    declared = cls.__pydantic_fields__
    faults: dict[str, OptionFault] = {}
    for item in error.errors(include_url=False, include_input=False):
        cause = item.get("ctx", {}).get("error")
        if not item["loc"]:  # raised by a check of several options; its message begins with the name of one
            message = f"{key}.{cause}"
            return [OptionFault(message.split()[0], message)]
        name = item["loc"][0]
        if isinstance(cause, OptionsError):  # nested options
            faults.update({fault.key: fault for fault in cause.faults})
            continue
        if isinstance(name, int):  # a positional argument
            name = list(declared)[name]
        if name not in declared:
            faults[name] = _unknown(name, cls, key)
            continue
        path, field = f"{key}.{name}", declared[name]
        if name in values:
            message = must_be(field.annotation, field.metadata, values[name])
        else:
            message = f"must be given: {describe_type(field.annotation, field.metadata)}"
        faults[name] = OptionFault(path, f"{path} {message}")
    return sorted(faults.values(), key=lambda fault: not str(fault).startswith("unknown key"))


def _text_of(value: Any) -> str:
    """Return the representation of a value for a message, without the user and password of an address."""
    return re.sub(r"//[^/\s]*@", "//...@", repr(value))


def _unknown(name: Any, cls: type, key: str) -> OptionFault:
    """Return the fault for an undeclared key, with a suggestion of the most similar declared one."""
    names = option_names(cls)
    parts = [f"unknown key {key}.{name}: use one of {', '.join(names)}", did_you_mean(str(name), names)]
    return OptionFault(f"{key}.{name}", "; ".join(filter(None, parts)))


def must_be(annotation: Any, metadata: Any, value: Any) -> str:
    """Return the message `must be ..., not VALUE` about a wrong value; the value is omitted if it might be
    secret."""
    requirement = f"must be {describe_type(annotation, metadata)}"
    return f"{requirement}, not {_text_of(value)}" if is_safe_to_show(annotation, metadata) else requirement


def is_safe_to_show(annotation: Any, metadata: Any = ()) -> bool:
    """Return whether messages may repeat a wrong value of this type."""
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return is_safe_to_show(inner[0], (*inner[1:], *metadata))
    if get_origin(annotation) in (Union, UnionType) and not all(map(is_safe_to_show, inner)):
        return False
    return all(item.is_shown for item in metadata if isinstance(item, Constraint))


def describe_type(annotation: Any, metadata: Any = ()) -> str:
    """Return the requirement for values of this type: that of its `Constraint`, or one derived from the
    type."""
    for item in reversed(tuple(metadata)):  # the last one is the outermost
        if isinstance(item, Constraint):
            return item.requirement
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return describe_type(arguments[0], arguments[1:])
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(map(describe_type, arguments))
    if get_origin(annotation) is Literal:
        names = list(map(str, arguments))
        return " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"
    minimum = [item.ge for item in metadata if isinstance(item, Ge)]
    suffix = f" of at least {minimum[0]}" if minimum else ""
    if annotation in _REQUIREMENTS:
        return _REQUIREMENTS[annotation] + suffix
    return getattr(annotation, "__name__", str(annotation))
