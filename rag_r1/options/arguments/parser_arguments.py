"""Adds the arguments of a declaration to a parser, with this project's help texts and list handling.

pydantic-settings derives the arguments from the declaration, and calls `ArgumentAdder` in place of argparse's
`add_argument` for each.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Container
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rag_r1.options.arguments.fields import Fields, flag_of, presentation


@dataclasses.dataclass
class ArgumentAdder:
    """Adds arguments to argparse's parser."""

    parser: argparse.ArgumentParser
    fields: Fields
    #: Names of arguments that are not required, since the settings contain their values.
    optional: Container[str]
    #: Whether the help includes the rare flags.
    with_rare: bool
    #: The groups of rare flags by their heading.
    groups: dict[str, argparse._ArgumentGroup] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if any(presentation(field)["rare"] for field in self.fields.values()):
            self.parser.add_argument("--help-all", action="help", help="show all flags, also rare ones")

    def __call__(self, group: argparse._ActionsContainer, *names: str, **kwargs: Any) -> argparse.Action:
        """Add one argument as pydantic-settings passes it, and return argparse's action."""
        name = kwargs.get("dest", names[0])
        field = self.fields[name]
        kwargs = _argparse_keywords(field, kwargs)
        former_name, heading = presentation(field)["old"], presentation(field)["rare"]
        if heading and not self.with_rare:
            kwargs["help"] = argparse.SUPPRESS
        elif heading:
            if heading not in self.groups:
                self.groups[heading] = self.parser.add_argument_group(heading)
            group = self.groups[heading]
        action = group.add_argument(*names, **kwargs)
        action.required &= name not in self.optional
        if former_name:  # known to the parser alone, so that help and messages show only the current name
            group._option_string_actions[flag_of(former_name)] = action
        if kwargs.get("action") == "store_true":  # its opposite overrides a flag set by a settings file
            group.add_argument(
                f"--no-{flag_of(name)[2:]}",
                action="store_const",
                const="false",
                dest=name,
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
        return action


class _JsonListAction(argparse.Action):
    """Collects the values of a list as JSON, which pydantic-settings does not split at commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        items = json.loads(getattr(namespace, self.dest, None) or "[]")
        items += values if isinstance(values, list) else [values]
        setattr(namespace, self.dest, json.dumps(items))


def _argparse_keywords(field: FieldInfo, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords for argparse: those that pydantic-settings passes, with this project's help text,
    metavar and handling of lists."""
    help_text = field.description or ""
    metavar = presentation(field)["metavar"]
    default = field.default
    if isinstance(default, list | tuple):
        default = " ".join(map(str, default)) or None
    # Compared by identity, since 0, which equals False, is a default to show.
    if not any(default is none for none in (PydanticUndefined, None, False)) and "(default" not in help_text:
        help_text += f" (default: {default})"
    if keywords.get("action") == "append" or "nargs" in keywords:
        keywords.update(action=_JsonListAction, default=argparse.SUPPRESS)
        if isinstance(metavar, tuple) and metavar[-1] is ...:
            keywords["nargs"], metavar = "+", metavar[0]
        elif isinstance(metavar, tuple):
            keywords["nargs"] = len(metavar)
    if "metavar" in keywords:  # not for a flag without a value
        if metavar is None and get_origin(field.annotation) is Literal:
            metavar = f"{{{','.join(map(str, get_args(field.annotation)))}}}"
        keywords["metavar"] = metavar
    return {**keywords, "help": help_text.replace("%", "%%")}
