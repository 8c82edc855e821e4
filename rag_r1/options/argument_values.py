"""Converts values of declared arguments from YAML and to a command line, and writes messages about wrong
ones.

These functions serve the class `Arguments` (command_line.py), whose fields they receive by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_settings.sources.types import _CliPositionalArg

from rag_r1.options.types import describe_type, is_safe_to_show

#: The fields of a declaration by the names of their flags (`field_names`).
Fields = Mapping[Any, FieldInfo]
#: Types of pydantic errors that consist of a name only, with the message that precedes all such names.
_NAME_TEXTS = {"extra_forbidden": "unrecognized arguments", "missing": "the following arguments are required"}


class ArgumentsError(ValueError):
    """A command would refuse these arguments. The message names their flags, which `flags` contains."""

    def __init__(self, message: str, flags: Iterable[str] = ()):
        super().__init__(message)
        self.flags = tuple(flags)

    @classmethod
    def of(cls, error: ValidationError, fields: Fields) -> ArgumentsError:
        """Return pydantic's error about fields as an ArgumentsError with messages about their flags."""
        errors = error.errors(include_url=False)
        flags = [flag_of(item["loc"][0]) for item in errors if item["loc"]]
        messages = [sentence(item, fields) for item in errors if item["type"] not in _NAME_TEXTS]
        for kind, message in _NAME_TEXTS.items():
            if flag_names := [flag_of(item["loc"][0]) for item in errors if item["type"] == kind]:
                messages.append(f"{message}: {', '.join(flag_names)}")
        return cls("; ".join(messages), flags)


def flag_of(name: Any) -> str:
    """Return the flag of a field, such as `--two-words`."""
    return f"--{str(name).replace('_', '-')}"


def field_names(cls: Any) -> dict[Any, FieldInfo]:
    """Return the fields of a declaration by the names under which values are passed."""
    return {field.validation_alias or name: field for name, field in cls.model_fields.items()}


def sentence(error: Any, fields: Fields) -> str:
    """Return the message about a wrong value: that of the validator that refused it, or one in the style of
    argparse."""
    cause = error.get("ctx", {}).get("error")
    if cause and not error["loc"]:
        return str(cause)
    name, value = error["loc"][0], error["input"]
    annotation, metadata = fields[name].annotation, fields[name].metadata
    if len(error["loc"]) > 1 and get_origin(annotation) is list:  # an item of the list is wrong
        annotation, metadata = get_args(annotation)[0], ()
    if cause and is_safe_to_show(annotation, metadata):
        return str(cause)
    return _refusal(name, annotation, metadata, value)


def _refusal(name: Any, annotation: Any, metadata: Any, value: Any) -> str:
    """Return the message about a wrong value; the value is omitted if it might be secret."""
    requirement = describe_type(annotation, metadata).removesuffix(" or null")
    shown = f", not {value!r}" if is_safe_to_show(annotation, metadata) else ""
    return f"argument {flag_of(name)}: must be {requirement}{shown}"


def from_plain(values: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return values from YAML or JSON in the form that the fields accept.

    A number or path becomes the word that it is on a command line, and a single item of a list becomes a
    list. Null is left out, so that the default applies. Keys may contain hyphens, and be former names. Raises
    ArgumentsError for a value that no command line could express, such as true for a text or a text for a
    switch, and for a key that is given twice.
    """
    names = {flag_of(old): name for name, field in fields.items() if (old := field.json_schema_extra["old"])}
    names |= {flag_of(name): name for name in fields}
    parsed: dict[str, Any] = {}
    for key, value in values.items():
        name = names.get(flag_of(key), str(key).replace("-", "_"))
        if name in parsed:
            raise ArgumentsError(f"argument {flag_of(name)}: given twice: leave out one", [flag_of(name)])
        if value is None:
            continue
        field = fields.get(name)
        if field is not None:
            is_flag = field.annotation is bool
            items = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(item, bool) != is_flag or isinstance(item, Mapping) for item in items):
                message = _refusal(name, field.annotation, field.metadata, value)
                raise ArgumentsError(message, [flag_of(name)])
            if not is_flag:
                items = [str(item) if isinstance(item, int | float | Path) else item for item in items]
                is_list = _is_list(field) or isinstance(value, list | tuple)
                value = items if is_list else items[0]
        parsed[name] = value
    return parsed


def values_of(arguments: Any) -> Iterator[tuple[str, FieldInfo, Any]]:
    """Yield the values of an Arguments in declared order, each with the name of its flag and its field."""
    for attribute, field in type(arguments).model_fields.items():
        yield str(field.validation_alias or attribute), field, getattr(arguments, attribute)


def words_of(arguments: Any) -> list[str]:
    """Return the words that pass an Arguments to its command (see `Arguments.to_argv`). Raises ValueError
    for a value that a command line cannot express."""
    flags: list[str] = []
    positional: list[str] = []
    for name, field, value in values_of(arguments):
        if value == field.default:
            continue
        flag = flag_of(name)
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag[2:]}")
        elif is_positional(field):
            positional += map(str, value if isinstance(value, list) else [value])
        elif value is None or value == []:
            raise ValueError(f"{flag}: {value!r} cannot be given on a command line")
        elif isinstance(value, tuple):
            flags += [flag, *map(str, value)]
        else:
            # A flag with several values takes all words that follow it, so each value gets its own flag.
            takes_several = isinstance(field.json_schema_extra["metavar"], tuple)
            for text in map(str, value if isinstance(value, list) else [value]):
                joined = takes_several or text.startswith(("-", "@"))  # @FILE.yaml would be read as settings
                flags += [f"{flag}={text}"] if joined else [flag, text]
    return [*flags, *positional]


def is_positional(field: FieldInfo) -> bool:
    """Return whether an argument is given without a flag."""
    return _CliPositionalArg in field.metadata


def no_empty_path(cls: Any, value: Any, info: ValidationInfo) -> Any:
    """Return the value of any field unchanged, unless it is an empty path, as `--out "$UNSET"` gives, which
    would mean the working directory. Then raises ValueError."""
    field = cls.model_fields[str(info.field_name)]
    kinds = [field.annotation, *get_args(field.annotation)]
    takes_paths = any(kind is Path or Path in get_args(kind) for kind in kinds)
    if takes_paths and "" in (value if isinstance(value, list) else [value]):
        name = field.json_schema_extra["metavar"] if is_positional(field) else flag_of(info.field_name)
        raise ValueError(f"argument {name}: must be a path, not ''")
    return value


def _is_list(field: FieldInfo) -> bool:
    """Return whether a flag takes several values or may be repeated."""
    kinds = [field.annotation, *get_args(field.annotation)]
    return any(get_origin(kind) in (list, tuple) for kind in kinds)
