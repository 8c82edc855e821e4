"""Validates the arguments of a tool call against a JSON schema in a sandbox worker.

Both can be hostile. A schema of a few hundred bytes can contain references to itself, or a regular
expression, with which every check takes forever. Even an ordinary regular expression can take forever for
arguments that a policy has written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rag_r1.io.errors import DataError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


def fault(schema: str, arguments: dict[str, Any], patterns: bool) -> str | None:
    """A job: returns what is wrong with the arguments, as a sentence for the policy, or None.

    `schema` is the schema as JSON, and `patterns` says whether its regular expressions are checked. Raises
    DataError if it is not a valid schema, and jsonschema's errors for references that cannot be resolved.
    """
    return argument_fault(_validator(schema, patterns), arguments)


def argument_fault(validator: Validator, arguments: dict[str, Any]) -> str | None:
    """Return what is wrong with the arguments, as a sentence for the policy, or None."""
    from jsonschema.exceptions import best_match

    try:
        error = best_match(validator.iter_errors(arguments))
    except (OverflowError, ValueError):  # multipleOf cannot divide NaN, infinity, or an integer of 400 digits
        return "Wrong arguments: a number is too large, or is not finite."
    if error is None:
        return None
    location = "".join(f"[{part!r}]" for part in error.absolute_path)
    return f"Wrong arguments{' at ' + location if location else ''}: {error.message}"[:2000]


def make_validator(schema: dict[str, Any], *, patterns: bool = True) -> Validator:
    """Return a validator of arguments by a schema. References are not fetched, since the registry is empty.
    `patterns` says whether regular expressions are checked. Raises DataError if it is not a valid schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import extend
    from referencing import Registry

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise DataError(error.message[:300]) from None
    if patterns:
        return Draft202012Validator(schema, registry=Registry())

    schema = json.loads(json.dumps(schema, default=str), object_hook=_without_dialect)

    def check_additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
        """Yield the errors of `additionalProperties`, unless patterns decide which ones are additional."""
        if "patternProperties" not in schema:
            keyword = Draft202012Validator.VALIDATORS["additionalProperties"]
            yield from keyword(validator, allowed, instance, schema)

    no_checks = dict.fromkeys(("pattern", "patternProperties", "unevaluatedProperties"), lambda *_: iter(()))
    without_patterns = extend(Draft202012Validator, {**no_checks, "additionalProperties": check_additional})
    return without_patterns(schema, registry=Registry())


def _without_dialect(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a schema without `$schema`, for which jsonschema would take the validator of that
    dialect, which checks patterns, instead of ours."""
    return {key: value for key, value in part.items() if key != "$schema" or not isinstance(value, str)}


@lru_cache(64)
def _validator(schema: str, patterns: bool) -> Validator:
    """Return the validator for a schema as JSON. Raises the errors of `make_validator`."""
    return make_validator(json.loads(schema), patterns=patterns)
