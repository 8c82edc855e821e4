"""Parses YAML written by users within limits on its length, nesting and values.

A file of a few kilobytes can crash the process (libyaml's parser overflows the stack on deeply nested
brackets) or fill the memory (aliases of aliases of aliases). So the parser's events are counted before any
object is built: the nesting, and the values with all aliases expanded. Numbers that take long to parse, or to
compare as keys, are refused, too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rag_r1.io.ordinary_files import open_ordinary

#: Most bytes of a file, and most characters of a text.
MAX_BYTES = 4 << 20
#: Most nesting levels, and most values and keys with all aliases expanded. A scalar counts as one value, plus
#: one for each _COUNTED_CHARS of its characters.
MAX_DEPTH, MAX_VALUES = 64, 200_000
_COUNTED_CHARS = 64
#: Most digits of a number, since the time to parse it grows with their square.
_MAX_DIGITS = 400
#: A text with more digits that YAML may interpret as a number.
_LONG_NUMBER = re.compile(rf"[-+]?[0-9a-fA-FxobE_:.+-]{{{_MAX_DIGITS + 1},}}")
#: Tags by which any text is parsed as a number.
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
#: Integers of 2**61 and more. Any number of them can have the same hash in Python, so that the time to build
#: a mapping with such keys grows with the square of their number.
_LARGE_NUMBER = re.compile(r"[-+]?[0-9a-fA-Fxob_:]{18,}")
_MAX_LARGE_NUMBERS = 1000


class YamlError(ValueError):
    """A YAML text cannot be read; the message gives the reason on one line."""


class YamlLimitError(YamlError):
    """A YAML text exceeds a limit of this module."""


#: yaml.SafeLoader, or its equivalent in C if PyYAML was built with it, which is several times as fast.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeys(_LOADER):
    """Refuses duplicate keys of a mapping, of which PyYAML would take the last."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self._flattened: set[yaml.MappingNode] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace the key `<<` of a mapping by the keys that it merges. Raises YamlError for a duplicate key.

        PyYAML may call this again for a mapping whose keys are already merged.
        """
        if node in self._flattened:
            return
        self._flattened.add(node)
        lines: dict[str, list[int]] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                lines.setdefault(key.value, []).append(key.start_mark.line + 1)
        for name, (first, *others) in lines.items():
            if others:
                raise YamlError(f"it has the key {name[:100]} twice (lines {first} and {others[0]})")
        super().flatten_mapping(node)


def read_yaml(path: Path) -> Any:
    """Return the value in a YAML file. Raises YamlError and OSError."""
    with open_ordinary(path) as stream:
        data = stream.read(MAX_BYTES + 1)
    _check_length(data)
    try:
        return load_yaml(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise YamlError(f"it is not UTF-8 text ({error.reason})") from None


def load_yaml(text: str) -> Any:
    """Return the value in a YAML text. Raises YamlError."""
    _check_length(text)
    try:
        _check_values(text)
        return yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())[:500]) from None
    except YamlError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError) as error:
        # Invalid dates, numbers and truth values, and keys that are not hashable.
        raise YamlError(f"a value cannot be read ({type(error).__name__}: {str(error)[:200]})") from None


def _check_length(text: str | bytes) -> None:
    """Raise YamlLimitError if a file or text is too long."""
    if len(text) > MAX_BYTES:
        raise YamlLimitError(f"it has more than {MAX_BYTES >> 20} MiB")


def _check_values(text: str) -> None:
    """Raise YamlLimitError if a text has too much nesting, too many values or too large numbers, and
    PyYAML's errors if it is not YAML."""
    anchor_sizes: dict[str, int] = {}  # number of values below each anchor, with aliases expanded
    open_anchors: list[str | None] = []  # anchors of the open lists and mappings, None for those without
    counts = [0]  # number of values in the document and in each open list and mapping
    large_numbers = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            counts.append(1)
            if len(open_anchors) > MAX_DEPTH:
                raise YamlLimitError(f"it is nested more than {MAX_DEPTH} deep (line {line})")
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = counts.pop(), open_anchors.pop()
            counts[-1] += size
            if anchor is not None:
                anchor_sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in open_anchors:
                raise YamlLimitError(f"*{event.anchor} stands inside itself (line {line})")
            counts[-1] += anchor_sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value) // _COUNTED_CHARS
            counts[-1] += size
            if event.anchor is not None:
                anchor_sizes[event.anchor] = size
            large_numbers += _is_large_number(event)
            if large_numbers > _MAX_LARGE_NUMBERS:
                raise YamlLimitError(
                    f"it has more than {_MAX_LARGE_NUMBERS:,} whole numbers of 18 digits and more: "
                    f"quote them (line {line})"
                )
        # The levels further out get these counts when the inner ones end.
        if sum(counts[-2:]) > MAX_VALUES:
            raise YamlLimitError(f"it has more than {MAX_VALUES:,} values, with its aliases written out")


def _is_large_number(event: yaml.ScalarEvent) -> bool:
    """Return whether a scalar is an integer of 18 digits or more. Raises YamlLimitError if it is a number of
    more than _MAX_DIGITS."""
    is_tagged = event.tag in _NUMBER_TAGS
    if not is_tagged and event.style not in (None, ""):  # a quoted text is no number
        return False
    if (is_tagged and len(event.value) > _MAX_DIGITS) or _LONG_NUMBER.fullmatch(event.value):
        line = event.start_mark.line + 1
        raise YamlLimitError(f"it has a number of more than {_MAX_DIGITS} digits (line {line})")
    return _LARGE_NUMBER.fullmatch(event.value) is not None
