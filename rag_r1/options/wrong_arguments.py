"""Reports wrong arguments together with all other problems of a command.

A command passes `read_arguments` the function that checks its files and servers. If arguments are wrong, this
function is called with the correct ones, so that one message can name a wrong flag and a missing file. It
gets the default in place of a wrong or missing argument, and a wrong list without its wrong items. A required
argument has no default and becomes an empty list, or UNKNOWN. A check that needs an UNKNOWN value is skipped
(`StartChecks`, rag_r1/runs/start_checks.py), and any other use of it raises UnknownValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, get_origin

from pydantic import TypeAdapter, ValidationError

from rag_r1.io.errors import error_text
from rag_r1.io.unknown_value import UNKNOWN, needs_unknown
from rag_r1.options.arguments.fields import fields_of, flag_of


def right_arguments(
    cls: Any, values: Mapping[str, Any], known_wrong: Iterable[str]
) -> tuple[Any, list[str], set[str]]:
    """Return the arguments without the wrong ones, the messages of the class's own validators about these
    arguments, and the names of all wrong or missing values. `values` has the values by the names of their
    flags, and `known_wrong` the names of those that are known to be wrong."""
    wrong_names = set(known_wrong)
    read_values: dict[str, Any] = {}
    for name, field in fields_of(cls).items():
        if name in values:
            # The None is there because Annotated requires at least one item of metadata.
            adapter = TypeAdapter(Annotated[field.annotation, *field.metadata, None])
            try:
                value = adapter.validate_python(values[name])
                if name not in wrong_names:
                    read_values[name] = value
                    continue
            except ValidationError as error:
                wrong_names.add(name)
                if right_items := _right_items(values[name], error):
                    read_values[name] = adapter.validate_python(right_items)
                    continue
        if field.is_required():
            wrong_names.add(name)
            read_values[name] = [] if get_origin(field.annotation) is list else UNKNOWN
    names = {field.validation_alias or name: name for name, field in cls.model_fields.items()}
    right_names = {names[name] for name in read_values if name not in wrong_names}
    args = cls.model_construct(right_names, **read_values)
    args._is_partial = True
    faults = []
    for validator in cls.__pydantic_decorators__.model_validators.values():
        try:
            validator.func(args)
        except ValueError as error:
            if not needs_unknown(error):
                faults.append(str(error))
    return args, list(_other_problems(faults, wrong_names)), wrong_names


def _right_items(value: Any, error: ValidationError) -> list[Any]:
    """Return the items of a list that this error is not about; [] if the error is about the list as a whole,
    or if the value is not a list."""
    locations = [item["loc"] for item in error.errors()]
    if not isinstance(value, list) or not all(locations):
        return []
    wrong_indices = {location[0] for location in locations}
    return [item for index, item in enumerate(value) if index not in wrong_indices]


def problems_beside(check: Callable[[Any], object], args: Any, wrong_names: Iterable[str]) -> list[str]:
    """Return the problems that a command's check finds in these arguments, except those that follow from
    wrong arguments."""
    try:
        check(args)
    except (ValueError, OSError, RuntimeError) as error:
        if needs_unknown(error):
            return []
        return list(_other_problems(getattr(error, "problems", None) or [error_text(error)], wrong_names))
    except Exception:  # probably due to a missing value; otherwise it recurs once the arguments are correct
        return []
    return []


def _other_problems(problems: Iterable[str], wrong_names: Iterable[str]) -> Iterator[str]:
    """Yield the problems that do not name the flag of a wrong argument."""
    flags = set(map(flag_of, wrong_names))
    for problem in problems:
        words = {word.strip(".,;:()`'") for word in problem.replace("=", " ").split()}
        if not flags & words:
            yield problem
