"""Reads a YAML file of several sections, each with declared options, and changes single keys of it.

    agent: {model: models/7b}                     a section, read by the class that declares it (declare.py)
    agent.model=models/other  ~agent.keys         words that change a key, or delete it

All faults are found at once, each with its key and the remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.io.atomic_files import reason_of
from rag_r1.io.bounded_yaml import YamlError, load_yaml, read_yaml
from rag_r1.options.declare import OptionsError, options_from

#: Names of sections, and the classes that declare them.
Declared = Mapping[str, Any]


class PlanError(ValueError):
    """A plan that cannot be followed; the message has all problems, one a line. `rest`: the plan with the
    defaults of the sections that cannot be read, for further checks."""

    def __init__(self, problems: Sequence[str], rest: Any = None):
        super().__init__("\n".join(problems))
        self.problems, self.rest = list(problems), rest


def load_sections(path: Path, declared: Declared) -> dict[str, Any]:
    """What stands in a file. Raises PlanError if it is no mapping of sections."""
    try:
        sections = read_yaml(path)
    except (OSError, YamlError) as error:
        remedy = "correct its YAML, or give another file" if isinstance(error, YamlError) else "give a file"
        raise PlanError([f"{path} cannot be read: {reason_of(error)}: {remedy}"]) from error
    if not isinstance(sections, dict):
        raise PlanError([f"{path}: must be a mapping with the sections {', '.join(declared)}"])
    return sections


def read_sections(
    where: object, sections: Mapping[str, Any], declared: Declared, may_be_absent: Collection[str] = ()
) -> tuple[dict[str, Any], list[str]]:
    """The declared sections by name, None for one that may be absent and is; and what is wrong with them.
    `where`: the file, for the messages."""
    names = ", ".join(declared)
    problems = [f"{where}: unknown section {name}: use {names}" for name in sections if name not in declared]
    read: dict[str, Any] = {}
    for name, cls in declared.items():
        section = sections.get(name)
        if section is None and name in may_be_absent:
            read[name] = None
        elif section is not None and not isinstance(section, Mapping):
            problems.append(f"{where}: {name} must be a mapping, not {section!r}")
        else:
            try:
                read[name] = options_from(cls, section or {})
            except OptionsError as error:
                problems += [f"{where}: {fault}" for fault in error.faults]
    return read, problems


def change_key(sections: dict[str, Any], word: str) -> str | None:
    """Put `section.key=value` into what was read, or delete the key of `~section.key`; what is wrong with it,
    or None."""
    key, separator, text = word.partition("=")
    *parents, last_key = key.lstrip("~").split(".")
    if not parents:
        return f"{word}: write section.key=value, such as agent.model=models/other"
    section = sections
    for name in parents:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            return f"{word}: {name} is not a section; use section.key=value"
    if key.startswith("~"):
        if separator or last_key not in section:
            reason = "a deletion has no value" if separator else f"there is no key {key[1:]} to delete"
            return f"{word}: {reason}; write ~section.key for a key of the file"
        del section[last_key]
        return None
    try:
        section[last_key] = load_yaml(text)
    except YamlError as error:
        return f"{word}: its value cannot be read: {' '.join(str(error).split())}"
    return None
