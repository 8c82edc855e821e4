"""What a declaration says about its arguments: their names, flags and kinds.

A declaration is a subclass of `Arguments` (command_line.py), and its fields are made by `argument` there. A
field is known by the name of its flag with underscores, which is that of the attribute unless the declaration
gives another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import EllipsisType
from typing import Any, TypedDict, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings.sources.types import _CliPositionalArg

#: The fields of a declaration by name (`fields_of`).
Fields = Mapping[str, FieldInfo]
#: The placeholder of a value in the help. A tuple declares several values; `...` repeats the last one.
Metavar = str | tuple[str | EllipsisType, ...]


class Presentation(TypedDict):
    """What `argument` adds to a field of pydantic."""

    metavar: Metavar | None
    #: A former name, which still works.
    old: str | None
    #: The heading under which `--help-all` shows the flag; `--help` does not show it.
    rare: str | None


def presentation(field: FieldInfo) -> Presentation:
    """Return what `argument` has added to this field."""
    return cast(Presentation, field.json_schema_extra)


def fields_of(cls: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a declaration by name, in declared order."""
    return {str(field.validation_alias or name): field for name, field in cls.model_fields.items()}


def values_of(arguments: BaseModel) -> Iterator[tuple[str, FieldInfo, Any]]:
    """Yield the values of an Arguments in declared order, each with the name of its field and the field."""
    for attribute, field in type(arguments).model_fields.items():
        yield str(field.validation_alias or attribute), field, getattr(arguments, attribute)


def flag_of(name: object) -> str:
    """Return the flag of a field, such as `--two-words`."""
    return f"--{str(name).replace('_', '-')}"


def is_positional(field: FieldInfo) -> bool:
    """Return whether an argument is given without a flag."""
    return _CliPositionalArg in field.metadata


def takes_several(field: FieldInfo) -> bool:
    """Return whether an argument takes several values or may be repeated."""
    return any(get_origin(kind) in (list, tuple) for kind in [field.annotation, *get_args(field.annotation)])
