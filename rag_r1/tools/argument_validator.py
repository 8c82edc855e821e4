"""Validates the arguments of a call against the JSON schema of a tool, in bounded time.

Neither the arguments, which a policy writes, nor the schema, which may come from a server, can be trusted. If
the schema is a small tree of plain keywords and the arguments are small, the check takes milliseconds and
runs in this process. Anything else (references, regular expressions, `uniqueItems`, large schemas or
arguments) is checked by a worker with a limit of CPU time (rag_r1/sandbox/json_schema.py), which does not
block the event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from rag_r1.io.errors import DataError
from rag_r1.sandbox.json_schema import argument_fault, make_validator
from rag_r1.sandbox.worker_pool import JobError, JobLimits, LimitError, WorkerPool

#: Largest schema, in characters of JSON.
MAX_SCHEMA_CHARS = 256 << 10
#: Most values in a schema, and in arguments, that are checked in this process.
_SCHEMA_LIMIT, _ARGUMENT_LIMIT = 300, 1_000
#: Keywords whose check looks at each value only once.
_PLAIN_KEYWORDS = frozenset(
    "type properties required additionalProperties items enum const minimum maximum exclusiveMinimum "
    "exclusiveMaximum minLength maxLength minItems maxItems minProperties maxProperties multipleOf anyOf "
    "allOf oneOf not title description default examples format deprecated readOnly writeOnly $schema "
    "$comment".split()
)
#: Limits of a check by a worker.
_LIMITS = JobLimits(cpu_s=1.0, memory_bytes=512 << 20, answer_bytes=1 << 20)
_workers = WorkerPool(2)


class ArgumentValidator:
    """Checks arguments against one schema. Raises DataError if the schema is too large or, for a small and
    plain one, if it is not a JSON schema. Whether any other schema is one shows at its first check.

    `foreign` is for the schema of a server, which also checks the arguments itself. Its regular expressions
    are not checked here, and arguments pass if their check fails. If a check takes too long, all later
    arguments pass, too, so that the server's schema costs this time only once.
    """

    def __init__(self, schema: Mapping[str, Any], foreign: bool = False):
        self.schema, self._foreign = schema, foreign
        self._text = json.dumps(schema, default=str)
        if len(self._text) > MAX_SCHEMA_CHARS:
            raise DataError(f"it has more than {MAX_SCHEMA_CHARS >> 10} KiB")
        is_quick = values_in(schema, _SCHEMA_LIMIT) <= _SCHEMA_LIMIT and _is_plain(schema)
        self._validator = make_validator(dict(schema), patterns=not foreign) if is_quick else None

    def is_quick(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the arguments are checked in this process."""
        return self._validator is not None and values_in(arguments, _ARGUMENT_LIMIT) <= _ARGUMENT_LIMIT

    def fault(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments, in a sentence for the policy, or None. May take seconds
        unless `is_quick`. Raises DataError if the schema is not valid. For a schema that is not `foreign`,
        also raises ValueError if a reference in it cannot be resolved, and OSError or RuntimeError if no
        worker can be started."""
        if self.is_quick(arguments):
            return argument_fault(self._validator, dict(arguments))
        try:
            job = [self._text, dict(arguments), not self._foreign]
            return _workers.call("rag_r1.sandbox.json_schema:fault", job, _LIMITS)
        except LimitError:
            if not self._foreign:
                return "Wrong arguments: they take too long to check."
            self._text, self._validator = '{"type": "object"}', None  # from now on everything passes
            return None
        except JobError as error:
            if error.kind == "DataError":
                raise DataError(str(error)) from None
            if self._foreign:
                return None
            raise ValueError(f"{error.kind}: {error}") from None
        except (OSError, RuntimeError):  # no worker could be started
            if not self._foreign:
                raise
            return None

    async def checked(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the same as `fault`, without blocking the event loop."""
        if self.is_quick(arguments):
            return self.fault(arguments)
        return await asyncio.to_thread(self.fault, arguments)


def values_in(value: Any, limit: int) -> int:
    """Return the number of values and keys in a JSON value; counting stops beyond `limit`. Does not recurse,
    so deep nesting is no problem."""
    count, pending = 0, [value]
    while pending and count <= limit:
        item = pending.pop()
        count += 1
        if isinstance(item, Mapping):
            count += len(item)
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
    return count


def _is_plain(schema: Any) -> bool:
    """Return whether a schema has only _PLAIN_KEYWORDS and few parts. Its defaults and examples do not
    matter."""
    pending, count = [schema], 0
    while pending and count <= _SCHEMA_LIMIT:
        item, count = pending.pop(), count + 1
        if isinstance(item, bool):
            continue
        if not isinstance(item, Mapping) or not _PLAIN_KEYWORDS.issuperset(item):
            return False
        properties = item.get("properties", {})
        if not isinstance(properties, Mapping):
            return False
        pending.extend(properties.values())
        pending.extend(item[key] for key in ("items", "not", "additionalProperties") if key in item)
        for key in ("anyOf", "allOf", "oneOf"):
            if not isinstance(item.get(key, []), list):
                return False
            pending.extend(item.get(key, []))
    return not pending
