"""Refuses empty paths, as `--out "$UNSET"` gives. They would mean the working directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationInfo

from rag_r1.options.arguments.fields import flag_of, is_positional, presentation


def no_empty_path(cls: type[BaseModel], value: Any, info: ValidationInfo) -> Any:
    """Return the value of any field unchanged. Raises ValueError, which names the argument, if it is an empty
    path."""
    field = cls.model_fields[str(info.field_name)]
    kinds = [field.annotation, *get_args(field.annotation)]
    takes_paths = any(kind is Path or Path in get_args(kind) for kind in kinds)
    if takes_paths and "" in (value if isinstance(value, list | tuple) else [value]):
        name = presentation(field)["metavar"] if is_positional(field) else flag_of(info.field_name)
        raise ValueError(f"argument {name}: must be a path, not ''")
    return value
