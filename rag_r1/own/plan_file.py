"""Reads a plan, changes keys of it, and writes it with a comment on every key.

The plan of a run is OUT/plan.yaml. It is what the flags of the first start made of the defaults, or of the
user's own file (--plan), and later starts read it again; flags and words section.key=value change keys of it.
Paths are written as absolute ones, so the same command goes on from another working directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rag_r1.options.declare import options_from
from rag_r1.options.sections import PlanError, change_key, load_sections, read_sections
from rag_r1.own.plan import SECTIONS, OwnPlan

#: The file in the folder of the run.
PLAN = "plan.yaml"
_HEAD = """\
# The plan of `rag-r1 own`: the same command, run again, reads it and goes on. A key may be changed as long
# as the steps that depend on it have not begun.
"""
#: Keys whose values are paths, with `~` and relative ones made absolute.
_PATHS = {
    "documents": ("folder", "corpus"),
    "questions": ("train", "test"),
    "policy": ("model", "prompt"),
    "sft": ("recipe",),
    "grpo": ("recipe",),
    "evaluation": ("one_shot_prompt",),
}


def read_plan(
    path: Path | None, flags: Mapping[str, Mapping[str, Any]], words: Sequence[str] = ()
) -> OwnPlan:
    """Returns the plan in a file, or the defaults, with the values of `flags`, by section and key, and the
    changes of `words`. Raises PlanError with all that is wrong."""
    sections = load_sections(path, SECTIONS) if path is not None else {}
    for name, values in flags.items():
        section = sections.get(name)
        if section is None or isinstance(section, dict):  # another value is refused below
            sections[name] = {**(section or {}), **values}
    problems = [problem for word in words if (problem := change_key(sections, word))]
    specs, faults = read_sections(path or "the plan", _with_absolute_paths(sections), SECTIONS)
    if problems or faults:
        defaults = {name: options_from(declared, flags.get(name, {})) for name, declared in SECTIONS.items()}
        raise PlanError([*problems, *faults], OwnPlan(**defaults | specs))
    return OwnPlan(**specs)


def plan_text(plan: OwnPlan) -> str:
    """The plan as YAML, with comments."""
    values = plan.plain()
    blocks = [_HEAD]
    for name, declared in SECTIONS.items():
        doc = " ".join((declared.__doc__ or "").split())
        lines = [f"# {doc[0].upper()}{doc[1:]}.", f"{name}:"]
        for key, field in declared.__pydantic_fields__.items():
            lines.append(f"  # {field.description}")
            text = yaml.safe_dump({key: values[name][key]}, default_flow_style=True, width=100_000)
            lines.append(f"  {text.strip()[1:-1]}")  # without the braces of the mapping
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _with_absolute_paths(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The sections with absolute paths in the keys of _PATHS."""
    changed = dict(sections)
    for name, keys in _PATHS.items():
        section = changed.get(name)
        if isinstance(section, dict):
            absolute = {key: _absolute(section[key]) for key in keys if key in section}
            changed[name] = {**section, **absolute}
    return changed


def _absolute(value: Any) -> Any:
    """A path, or several, as absolute ones; a name that is not a path on this machine stays as it is."""
    if isinstance(value, list | tuple):
        return [_absolute(item) for item in value]
    if not isinstance(value, str | Path):
        return value
    path = Path(value).expanduser()
    return str(path.absolute()) if path.exists() else str(value)
