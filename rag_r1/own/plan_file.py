"""Reads a plan, applies the changes of the command line, and writes it with a comment for every key.

A new run starts from the defaults, or from the user's own file (`--plan`). The result is written as
OUT/plan.yaml, which is read when the run is resumed. In both cases flags and words `section.key=value` change
keys of the plan. Relative paths of documents, questions, the model, prompts and recipes are made absolute if
something is there, so that a run can be resumed from another working directory. Those of an encoder, and of a
protocol in a file, are not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rag_r1.options.from_config import options_from
from rag_r1.options.sections import PlanError, change_key, load_sections, read_sections
from rag_r1.own.plan import SECTIONS, OwnPlan

#: Name of the plan's file in the folder of the run.
PLAN = "plan.yaml"
_HEAD = """\
# The plan of `rag-r1 own`: the same command, run again, reads it and goes on. A key may be changed as long
# as the steps that depend on it have not begun.
"""
#: The keys of each section whose values are paths.
_PATHS = {
    "documents": ("folder", "corpus"),
    "questions": ("train", "test"),
    "policy": ("model", "prompt"),
    "sft": ("recipe",),
    "grpo": ("recipe",),
    "evaluation": ("one_shot_prompt",),
}
#: The keys of a section that describe a server together.
_SERVER_KEYS = ("url", "model", "api_key_env")


def read_plan(
    path: Path | None, flags: Mapping[str, Mapping[str, Any]], words: Sequence[str] = ()
) -> OwnPlan:
    """Read the plan in a file, or take the defaults, and change keys of it.

    `flags` has new values by section and key, and `words` has changes of the form `section.key=value`.
    Raises PlanError with all problems and a plan for further checks, in which wrong sections have the
    defaults and the flags.
    """
    sections = load_sections(path, SECTIONS) if path is not None else {}
    for name, values in flags.items():
        section = sections.get(name)
        if section is None or isinstance(section, dict):  # read_sections refuses other values
            sections[name] = {**(section or {}), **values}
    problems = [problem for word in words if (problem := change_key(sections, word))]
    readable, faults, wrong_keys = read_sections(path or "the plan", _with_absolute_paths(sections), SECTIONS)
    if problems or faults:
        # A section whose server is wrong is left out, since requests to another server would tell nothing.
        servers = {key.partition(".")[0] for key in wrong_keys if key.partition(".")[2] in _SERVER_KEYS}
        readable = {name: section for name, section in readable.items() if name not in servers}
        defaults = {name: options_from(declared, flags.get(name, {})) for name, declared in SECTIONS.items()}
        wrong_sections = {key.partition(".")[0] for key in wrong_keys} | (SECTIONS.keys() - readable.keys())
        raise PlanError([*problems, *faults], OwnPlan(**defaults | readable), wrong_sections)
    return OwnPlan(**readable)


def plan_text(plan: OwnPlan) -> str:
    """Format a plan as YAML, with a comment for every section and every key."""
    values = plan.plain()
    blocks = [_HEAD]
    for name, declared in SECTIONS.items():
        comment = " ".join((declared.__doc__ or "").split())
        lines = [f"# {comment[0].upper()}{comment[1:]}.", f"{name}:"]
        for key, field in declared.__pydantic_fields__.items():
            lines.append(f"  # {field.description}")
            mapping = yaml.safe_dump({key: values[name][key]}, default_flow_style=True, width=100_000)
            lines.append(f"  {mapping.strip()[1:-1]}")  # the line of the key, without the braces
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _with_absolute_paths(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections with the paths in the keys of _PATHS made absolute."""
    changed = dict(sections)
    for name, keys in _PATHS.items():
        section = changed.get(name)
        if isinstance(section, dict):
            absolute = {key: _absolute(section[key]) for key in keys if key in section}
            changed[name] = {**section, **absolute}
    return changed


def _absolute(value: Any) -> Any:
    """Make a path, or each path of a list, absolute.

    `~` is replaced by the home folder. A text that is then no path on this machine, such as a name on the
    Hub, is not made absolute. A value of another type is returned unchanged, and refused later.
    """
    if isinstance(value, list | tuple):
        return [_absolute(item) for item in value]
    if not isinstance(value, str | Path):
        return value
    path = os.path.expanduser(value)  # Path's own methods raise errors for an unknown user and a long name
    return str(Path(path).absolute()) if os.path.exists(path) else str(value)
