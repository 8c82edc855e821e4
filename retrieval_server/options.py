"""Base classes for options: pydantic models whose fields are the flags of a command line.

    class EngineOptions(Options):
        group = Group("batching")
        max_batch: Annotated[int, Field(ge=1), Flag("queries in a batch")] = 64

This declares the flag `--max-batch`, its line in `--help` with the default, the refusal of 0, and the field
that the engine reads. The type of a field determines how its flag is read: `Literal` makes choices, `bool` a
flag without a value, and `tuple[X, ...]` a flag with several values. A tuple of fixed length is one value,
which its flag must `read` from one text. Any type may be optional, `X | None`; there are no other unions. A
field that is a model adds the flags of that model under the title of its `group`. A field without `Flag` has
no flag. Conditions between options belong to the `contradictions` of the model that contains them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from retrieval_server.errors import UserError

#: A number that makes no sense below 1.
AtLeastOne = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Group:
    """A heading of `--help` and the text below it."""

    title: str
    description: str | None = None


@dataclass(frozen=True)
class Flag:
    """How a field appears on the command line."""

    #: The text in `--help`, to which the default is added.
    help: str
    #: All spellings, of which the first is shown. By default the field's name: `max_batch` as `--max-batch`.
    names: tuple[str, ...] = ()
    #: What `--help` shows in place of the value. By default the choices or the field's name in capitals.
    metavar: str | None = None
    #: The allowed values, if the type does not determine them.
    choices: tuple[str, ...] | None = None
    #: Converts one text, if the type does not determine how. Raises ValueError with the reason alone, before
    #: which `Option.read` puts the flag.
    read: Callable[[str], Any] | None = None
    #: For `tuple[X, ...]`: whether several values may follow one flag (`--corpus A B`), or each has a flag of
    #: its own (`--of A --of B`). Either flag may be repeated.
    in_a_row: bool = False
    #: Whether the value has no flag and is recognised by its position.
    positional: bool = False
    #: A heading that replaces the heading of the model.
    group: Group | None = None
    #: The default that `--help` shows. None shows the real default, if it is a number or a word.
    default: str | None = None


class ContradictionError(ValueError):
    """Options contradict each other. `errors` has one error for each contradiction."""

    def __init__(self, errors: Sequence[UserError]):
        super().__init__("\n".join(map(str, errors)))
        self.errors = list(errors)


class Options(BaseModel):
    """Base of the models that declare options."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    group: ClassVar[Group | None] = None

    def contradictions(self) -> Iterator[UserError]:
        """Yield an error for each contradiction between options, which names the flags and the remedy."""
        return iter(())

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if errors := list(self.contradictions()):
            raise ContradictionError(errors)
        return self


Model = TypeVar("Model", bound=Options)


@dataclass(frozen=True)
class Option:
    """One option of a command: a field of its model, or of a nested one, that has a flag."""

    #: The names of the fields that lead to this one through nested models.
    path: tuple[str, ...]
    field: FieldInfo
    flag: Flag
    #: The heading of `--help` below which the flag is shown.
    group: Group | None

    @property
    def names(self) -> tuple[str, ...]:
        """The spellings of the flag, of which the first is shown. A positional argument has only one."""
        name = self.path[-1]
        return (name,) if self.flag.positional else self.flag.names or ("--" + name.replace("_", "-"),)

    @property
    def dest(self) -> str:
        """The name under which argparse stores the value."""
        return ".".join(self.path)

    @property
    def default(self) -> Any:
        """The default of the field."""
        return self.field.get_default(call_default_factory=True)

    @property
    def type(self) -> Any:
        """The field's type; for an optional field the type without None.

        Raises TypeError for another union than `X | None`, since its type does not say how to read the flag.
        """
        annotation = self.field.annotation
        if get_origin(annotation) in (Union, types.UnionType):
            annotation, *others = (kind for kind in get_args(annotation) if kind is not type(None))
            if others:
                raise TypeError(f"{self.dest}: no flag can be {self.field.annotation}, only X | None")
        return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation

    @property
    def choices(self) -> Sequence[str] | None:
        """The allowed values, or None if the field does not have a fixed set of values."""
        return get_args(self.type) if get_origin(self.type) is Literal else self.flag.choices

    def read(self, value: Any) -> Any:
        """Convert what argparse stored, a text or a list of texts, to what the model validates.

        A flag without a value is already true or false. Raises ValueError with a sentence that begins with
        the name of the flag.
        """
        name, convert, choices = self.names[0], self.flag.read, self.choices
        for text in value if isinstance(value, list) else [value]:
            if choices and text not in choices:
                raise ValueError(f"{name} must be {' or '.join(choices)}, not {text!r}")
            if text == "" and Path in (self.type, *get_args(self.type)):  # such as --out "$UNSET"
                raise ValueError(f"{name}: must be a path, not ''")
        if convert is None:
            return value
        values: list[Any] = []
        faults: list[str] = []
        for text in value if isinstance(value, list) else [value]:
            try:
                values.append(convert(text))
            except ValueError as error:
                faults.append(str(error))
        if faults:
            raise ValueError(f"{name}: {'; '.join(faults)}")
        return values if isinstance(value, list) else values[0]


def declared_options(
    model: type[Options], path: tuple[str, ...] = (), group: Group | None = None
) -> Iterator[Option]:
    """Yield the options of a model and of its nested models, in the order of their declaration."""
    group = model.group or group
    for name, field in model.model_fields.items():
        if is_model(field):
            yield from declared_options(field.annotation, (*path, name), group)  # type: ignore[arg-type]
            continue
        flag = next((item for item in field.metadata if isinstance(item, Flag)), None)
        if flag is not None:
            yield Option((*path, name), field, flag, flag.group or group)


def given_flags(command: Options, names: Container[str]) -> list[str]:
    """Return the flags on a command line of the fields in `names`.

    A field of the command stands for all flags below it; a field of a nested model is named by its path, such
    as `dense.nprobe`.
    """
    return [
        option.names[0]
        for option in declared_options(type(command))
        if (option.path[0] in names or option.dest in names)
        and option.path[-1] in reduce(getattr, option.path[:-1], command).model_fields_set
    ]


def is_model(field: FieldInfo) -> bool:
    """Return whether a field is a nested model of options."""
    return isinstance(field.annotation, type) and issubclass(field.annotation, Options)


def empty_values(model: type[Options]) -> dict[str, Any]:
    """Return an empty dictionary for every nested model, so that validation fills in its defaults."""
    fields = model.model_fields.items()
    return {name: empty_values(field.annotation) for name, field in fields if is_model(field)}  # type: ignore
