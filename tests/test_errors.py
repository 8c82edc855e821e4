"""The classes of errors: each is one that some code tells apart from others, in one place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tests.test_structure import MODULES, ROOT

#: Elements of OptionsError.faults, and what ends a command with its message: nothing tells these apart.
KEPT = {"OptionFault", "RewardError", "McpFailure", "CommandError"}
DECLARED = re.compile(r"^class (\w+(?:Error|Failure|Refusal|Fault))\(", re.MULTILINE)
TOLD_APART = re.compile(r"except ([^:]+):|isinstance\(([^)]+)\)|suppress\(([^)]+)\)")


def told_apart(text: str) -> set[str]:
    """The names in the `except`, `isinstance` and `suppress` of a module."""
    return {name for parts in TOLD_APART.findall(text) for name in re.findall(r"\w+", " ".join(parts))}


def texts() -> Iterator[str]:
    """The modules of the trainer's side; the retrieval server is a program of its own."""
    paths = (path for path in MODULES if path.relative_to(ROOT).parts[0] != "retrieval_server")
    return (path.read_text(encoding="utf-8") for path in paths)


def test_some_code_tells_each_class_of_errors_apart():
    declared = {name for text in texts() for name in DECLARED.findall(text)}
    used = set().union(*map(told_apart, texts()))
    assert declared - used - KEPT == set(), "raise one of io/errors.py or runs/errors.py"
    assert KEPT <= declared, "what is not there any more is not kept"


def test_a_class_of_errors_has_one_home():
    homes = Counter(name for text in texts() for name in DECLARED.findall(text))
    assert [name for name, count in homes.items() if count > 1] == []


def test_an_error_that_nothing_tells_apart_is_found():
    text = "class OwnError(ValueError): ...\ntry:\n    pass\nexcept (OSError,\n    OtherError) as error: pass"
    assert DECLARED.findall(text) == ["OwnError"] and "OwnError" not in told_apart(text)
    assert {"OSError", "OtherError"} <= told_apart(text)
