"""Reads a YAML file that consists of sections with declared options, and changes single keys of it.

    agent: {model: models/7b}                     a section, read by the class that declares it (declare.py)
    agent.model=models/other  ~agent.keys         words that change or delete a key

All faults of the sections are reported at once, each with its key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.io.bounded_yaml import YamlError, load_yaml, read_yaml
from rag_r1.io.errors import reason_of
from rag_r1.options.declare import OptionsError, option_names
from rag_r1.options.from_config import options_from

#: Name of a section -> the class that declares its options.
Declared = Mapping[str, Any]


class PlanError(ValueError):
    """A plan, such as a file of sections, cannot be read or has wrong sections or keys; the message has one
    problem per line.

    `problems` has these problems. `readable` is the plan without the wrong sections and keys, for further
    checks; None if it cannot be built. `wrong_sections` has the names of the sections in which something is
    wrong.
    """

    def __init__(self, problems: Sequence[str], readable: Any = None, wrong_sections: Set[str] = frozenset()):
        super().__init__("\n".join(problems))
        self.problems = list(problems)
        self.readable = readable
        self.wrong_sections = wrong_sections


def load_sections(path: Path, declared: Declared) -> dict[str, Any]:
    """Return the sections in a YAML file. Raises PlanError if the file cannot be read or is not a
    mapping."""
    try:
        sections = read_yaml(path)
    except (OSError, YamlError) as error:
        remedy = "correct its YAML, or give another file" if isinstance(error, YamlError) else "give a file"
        raise PlanError([f"{path} cannot be read: {reason_of(error)}: {remedy}"]) from error
    if not isinstance(sections, dict):
        raise PlanError([f"{path}: must be a mapping with the sections {', '.join(declared)}"])
    return sections


class ReadSections(NamedTuple):
    """What `read_sections` finds in a file."""

    #: The objects of the declared classes, by the name of the section.
    specs: dict[str, Any]
    #: Messages about wrong sections and keys.
    problems: list[str]
    #: The wrong keys, as `section.key`.
    wrong_keys: set[str]


def read_sections(
    source: object,
    sections: Mapping[str, Any],
    declared: Declared,
    may_be_absent: Collection[str] = (),
    placeholders: Mapping[str, Any] | None = None,
) -> ReadSections:
    """Return the declared sections, together with all problems instead of raising an error.

    A wrong section is left out. A wrong key has the value that it has in the section's placeholder, or else
    its default; a section that cannot be made in this way is left out. A section in `may_be_absent` is None
    if the file does not have it. `source` is the file named in messages.
    """
    names = ", ".join(declared)
    problems = [f"{source}: unknown section {name}: use {names}" for name in sections if name not in declared]
    specs: dict[str, Any] = {}
    wrong_keys: set[str] = set()
    for name, cls in declared.items():
        section = sections.get(name)
        if section is None and name in may_be_absent:
            specs[name] = None
            continue
        section = {} if section is None else section
        if not isinstance(section, Mapping):
            problems.append(f"{source}: {name} must be a mapping, not {section!r}")
            continue
        try:
            specs[name] = options_from(cls, section)
        except OptionsError as error:
            problems += [f"{source}: {fault}" for fault in error.faults]
            wrong = {fault.key.removeprefix(f"{name}.").partition(".")[0] for fault in error.faults}
            wrong_keys |= {f"{name}.{key}" for key in wrong}
            values = {key: value for key, value in section.items() if str(key) not in wrong}
            if (placeholder := (placeholders or {}).get(name)) is not None:
                values |= {key: getattr(placeholder, key) for key in wrong & {*option_names(cls)}}
            with suppress(OptionsError):
                specs[name] = options_from(cls, values)
    return ReadSections(specs, problems, wrong_keys)


def change_key(sections: dict[str, Any], word: str) -> str | None:
    """Set `section.key=value` in `sections`, or delete the key of `~section.key`. Returns a message if the
    word is wrong, else None."""
    key, separator, text = word.partition("=")
    *parents, last_key = key.lstrip("~").split(".")
    if not parents:
        return f"{word}: write section.key=value, such as agent.model=models/other"
    section = sections
    for name in parents:
        inner = {} if section.get(name) is None else section[name]
        if not key.startswith("~"):  # a deletion makes no section
            section[name] = inner
        section = inner
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
