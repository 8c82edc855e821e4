"""The error about wrong arguments, whose messages are in the style of argparse and name the flags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rag_r1.options.arguments.fields import Fields, flag_of
from rag_r1.options.types import is_safe_to_show, must_be

#: Types of pydantic errors whose messages only name arguments, and the text before the list of these names.
_NAME_LISTS = {"extra_forbidden": "unrecognized arguments", "missing": "the following arguments are required"}


class ArgumentsError(ValueError):
    """A command would refuse these arguments.

    - `flags`: the flags that the message names
    - `wrong_values`: the messages about values that are wrong by themselves, by flag
    """

    def __init__(self, message: str, flags: Iterable[str] = (), wrong_values: dict[str, str] | None = None):
        super().__init__(message)
        self.flags = tuple(flags)
        self.wrong_values = wrong_values or {}

    @classmethod
    def of(cls, error: ValidationError, fields: Fields) -> ArgumentsError:
        """Return pydantic's error about fields as an ArgumentsError with messages about their flags."""
        errors = error.errors(include_url=False)
        flags = [flag_of(item["loc"][0]) for item in errors if item["loc"]]
        wrong = [(item, message_of(item, fields)) for item in errors if item["type"] not in _NAME_LISTS]
        messages = [message for _, message in wrong]
        for kind, text in _NAME_LISTS.items():
            if names := [flag_of(item["loc"][0]) for item in errors if item["type"] == kind]:
                messages.append(f"{text}: {', '.join(names)}")
        wrong_values = {flag_of(item["loc"][0]): message for item, message in wrong if item["loc"]}
        return cls("; ".join(messages), flags, wrong_values)


def message_of(error: ErrorDetails, fields: Fields) -> str:
    """Return the message about a wrong value. It is that of the validator that refused it or, if there is
    none or its message might repeat a secret, says what the value must be."""
    cause = error.get("ctx", {}).get("error")
    if cause and not error["loc"]:
        return str(cause)
    name = str(error["loc"][0])
    annotation, metadata = fields[name].annotation, fields[name].metadata
    if len(error["loc"]) > 1 and get_origin(annotation) is list:  # an item of the list is wrong
        annotation, metadata = get_args(annotation)[0], []
    if cause and is_safe_to_show(annotation, metadata):
        return str(cause)
    return f"argument {flag_of(name)}: {must_be(annotation, metadata, error['input'], null=False)}"


def wrong_value(name: str, field: FieldInfo, value: object) -> str:
    """Return the message that an argument must have another value."""
    return f"argument {flag_of(name)}: {must_be(field.annotation, field.metadata, value, null=False)}"
