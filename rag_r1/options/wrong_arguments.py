"""Reports wrong arguments together with the other problems of a command.

A command gives `read_arguments` the function that checks its files and servers. If arguments are wrong, that
function is called with those that are right. A wrong or missing one has its default; a list is empty; and a
required one is UNKNOWN: a check that needs it is left out (`StartChecks`, rag_r1/runs/start_checks.py), and
any other use of it raises UnknownValueError. So nobody has to correct a flag to learn of a missing file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, get_origin

from pydantic import TypeAdapter, ValidationError

from rag_r1.io.atomic_files import error_text
from rag_r1.io.unknown_value import UNKNOWN, needs_unknown
from rag_r1.options.argument_values import field_names, flag_of


def right_arguments(cls: Any, values: Mapping[str, Any], wrong: set[str]) -> tuple[Any, list[str]]:
    """The arguments without those of `wrong`, which is added to; and what the class's own validators
    refuse in them. `values`: by the names of their flags."""
    read_values: dict[str, Any] = {}
    for name, field in field_names(cls).items():
        if name in values and name not in wrong:
            try:
                kind = Annotated[field.annotation, *field.metadata, None]
                read_values[name] = TypeAdapter(kind).validate_python(values[name])
                continue
            except ValidationError:
                wrong.add(name)
        if field.is_required():
            wrong.add(name)
            read_values[name] = [] if get_origin(field.annotation) is list else UNKNOWN
    names = {field.validation_alias or name: name for name, field in cls.model_fields.items()}
    args = cls.model_construct({names[name] for name in read_values if name not in wrong}, **read_values)
    args._is_partial = True
    faults = []
    for validator in cls.__pydantic_decorators__.model_validators.values():
        try:
            validator.func(args)
        except ValueError as error:
            if not needs_unknown(error):
                faults.append(str(error))
    return args, list(_own_problems(faults, wrong))


def problems_beside(check: Callable[[Any], object], args: Any, wrong_names: Iterable[str]) -> list[str]:
    """What the check of a command refuses in these arguments, but for what follows from `wrong_names`."""
    try:
        check(args)
    except (ValueError, OSError, RuntimeError) as error:
        if needs_unknown(error):
            return []
        return list(_own_problems(getattr(error, "problems", None) or [error_text(error)], wrong_names))
    except Exception:  # for want of a value: what is wrong in itself shows when the arguments are right
        return []
    return []


def _own_problems(problems: Iterable[str], wrong_names: Iterable[str]) -> Iterator[str]:
    flags = set(map(flag_of, wrong_names))
    for problem in problems:
        words = {word.strip(".,;:()`'") for word in problem.replace("=", " ").split()}
        if not flags & words:
            yield problem
