"""The types of options and arguments, and what messages say about a wrong value.

    Slices = Annotated[int, Field(ge=2), Constraint("a whole number of at least 2")]
    must_be(Slices | None, (), 1)     must be a whole number of at least 2 or null, not 1

A type is described by the requirement of its Constraint, or else by what its Python type requires. The types
defined here are for options, which are read from a configuration. They are strict: `true` is not a number,
and "3" is not 3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge
from pydantic import Field, Strict


@dataclass(frozen=True)
class Constraint:
    """States, in an annotation, what a value must be."""

    #: The requirement in the words of an error message, such as `a number above 0`.
    requirement: str
    #: Whether messages repeat a wrong value, which might be secret.
    is_shown: bool = True


Flag = Annotated[bool, Strict(), Constraint("true or false")]
Text = Annotated[str, Strict(), Constraint("a text")]
FilledText = Annotated[str, Strict(), Field(pattern=r"\S"), Constraint("a text that is not empty")]
Count = Annotated[int, Strict(), Field(ge=0), Constraint("a whole number of at least 0")]
PositiveCount = Annotated[int, Strict(), Field(ge=1), Constraint("a whole number of at least 1")]
PositiveNumber = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False), Constraint("a number above 0")]
Seconds = Annotated[
    float, Strict(), Field(ge=0, allow_inf_nan=False), Constraint("a number of seconds of at least 0")
]
PositiveSeconds = Annotated[
    float, Strict(), Field(gt=0, allow_inf_nan=False), Constraint("a number of seconds above 0")
]

#: The requirement for a value whose type has no Constraint.
_REQUIREMENTS = {
    NoneType: "null",
    bool: "true or false",
    str: "a text",
    int: "a whole number",
    float: "a number",
    Path: "a path",
}


def must_be(annotation: Any, metadata: Sequence[object], value: object, *, null: bool = True) -> str:
    """Return the message `must be ..., not VALUE` about a wrong value. The value is omitted if it might be
    secret, and so are the user and password of an address in it. The other arguments are those of
    `describe_type`."""
    requirement = f"must be {describe_type(annotation, metadata, null=null)}"
    shown = re.sub(r"//[^/\s]*@", "//...@", repr(value))
    return f"{requirement}, not {shown}" if is_safe_to_show(annotation, metadata) else requirement


def is_safe_to_show(annotation: Any, metadata: Sequence[object] = ()) -> bool:
    """Return whether messages may repeat a wrong value of this type."""
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return is_safe_to_show(inner[0], (*inner[1:], *metadata))
    if get_origin(annotation) in (Union, UnionType) and not all(map(is_safe_to_show, inner)):
        return False
    return all(item.is_shown for item in metadata if isinstance(item, Constraint))


def describe_type(annotation: Any, metadata: Sequence[object] = (), *, null: bool = True) -> str:
    """Return the requirement for values of a type, which may have further `metadata`: that of its
    Constraint, or one derived from the type. If not `null`, `int | None` is described like `int`."""
    for item in reversed(metadata):  # the last one is the outermost
        if isinstance(item, Constraint):
            return item.requirement
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return describe_type(arguments[0], arguments[1:], null=null)
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(describe_type(kind) for kind in arguments if null or kind is not NoneType)
    if get_origin(annotation) is Literal:
        names = list(map(str, arguments))
        return " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}"
    minimum = [item.ge for item in metadata if isinstance(item, Ge)]
    suffix = f" of at least {minimum[0]}" if minimum else ""
    if annotation in _REQUIREMENTS:
        return _REQUIREMENTS[annotation] + suffix
    return getattr(annotation, "__name__", str(annotation))
