"""The registry of reward terms, and how to add your own.

A term is a function `(trajectory, golds, **options)`. Its options are keyword-only parameters, so the
signature documents them, and a wrong option is refused when a run starts. Write the function in any module,

    def short_answer(trajectory, golds, *, most_words: int = 5) -> float:
        return float(trajectory.answer is not None and len(trajectory.answer.split()) <= most_words)

and name it in the configuration by its import path:

    rag_r1:
      reward:
        - {term: em, weight: 1.0}
        - {term: "my_package.my_rewards:short_answer", weight: 0.1, most_words: 3}

The terms in this package have short names, which `@register("name")` gives them. A term with a keyword
`protocol` receives the Protocol of the run, for its tags.

A term returns one number, or a list with one number for each turn; its value is then their sum (credit.py).
If it cannot judge a trajectory, it returns None or a number that is not finite, or raises `CannotJudgeError`
with a reason. It may be `async def`, to call a model or a server. Then its entry may set `timeout_s`, the
seconds that it may take for one trajectory (term_call.py). docs/rewards.md shows examples.

Three functions can be attached to a term, by the arguments of `@register` or as attributes of the function:

    check    `check_options`: returns the faults of options that the signature cannot express
    parts    `credit_parts`: says which parts of the policy's text have earned the value (token_credit.py)
    values   `value_range`: returns the least and the greatest value, with which a threshold is compared
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rag_r1.options.import_path import ImportPathError, import_object
from rag_r1.rewards.spans import SpanValue

#: A term. It returns one number, one for each turn, or None; if it is async, an awaitable of these.
TermFunction = Callable[..., Any]
#: Returns the faults of a term's options; the second argument is the key of its entry.
OptionCheck = Callable[[Mapping[str, Any], str], list[str]]
#: Returns the parts of a term's value. The arguments are the trajectory, the value and, as keywords,
#: `protocol` (or None) and the options of the term.
CreditParts = Callable[..., list[SpanValue]]
#: Returns the least and the greatest value of a term. The arguments are the options of the term, as keywords.
ValueRange = Callable[..., tuple[float, float]]

_terms: dict[str, TermFunction] = {}


class RewardError(ValueError):
    """Raised if an entry under `rag_r1.reward` is wrong, which the message names by its key, or if a term
    fails. `remedy` says what to do if the message does not."""

    def __init__(self, message: str, remedy: str = ""):
        super().__init__(message)
        self.remedy = remedy


class CannotJudgeError(Exception):
    """Raised by a term that could not judge a trajectory, and so is left out of that sample. The message is
    the reason; it is kept in the record of the trajectory."""


#: The old name, which users' terms may import, is kept for one release.
Refused = CannotJudgeError


def register(
    name: str,
    check: OptionCheck | None = None,
    parts: CreditParts | None = None,
    values: ValueRange | None = None,
) -> Callable[[TermFunction], TermFunction]:
    """Decorator that registers a function as the term `name`, with its `check`, `parts` and `values` (see the
    top of the module). Raises RewardError if the name is taken."""

    def add(function: TermFunction) -> TermFunction:
        if name in _terms:
            raise RewardError(f"there is a reward term {name!r} already: choose another name")
        if check is not None:
            function.check_options = check
        if parts is not None:
            function.credit_parts = parts
        if values is not None:
            function.value_range = values
        _terms[name] = function
        return function

    return add


def zero_to_one(**options: object) -> tuple[float, float]:
    """The `values` of a term that returns a share, or 1 for yes and 0 for no."""
    return 0.0, 1.0


def check_threshold(
    flag: str, threshold: float, name: str, function: TermFunction, options: Mapping[str, Any]
) -> None:
    """Raise RewardError, which names the flag and the term, if all values of the term reach the threshold, or
    none does. A term without a range is not checked."""
    if (value_range := getattr(function, "value_range", None)) is None:
        return
    low, high = value_range(**options)
    if not low < threshold <= high:
        share = "no" if threshold > high else "every"
        raise RewardError(
            f"{flag} {threshold:g}: {name} has values from {low:g} to {high:g}, so {share} answer would be "
            f"right: give a number above {low:g} and at most {high:g}"
        )


def term_names() -> list[str]:
    """Return the names of the registered terms."""
    return sorted(_terms)


def find_term(name: str, key: str) -> TermFunction:
    """Return the function with a registered name or an import path. Raises RewardError, which names `key`."""
    if name in _terms:
        return _terms[name]
    if ":" not in name:
        raise RewardError(
            f"{key}: unknown term {name!r}; use one of {', '.join(term_names())}, "
            "or the import path of your own function, `package.module:function`"
        )
    try:
        function = import_object(name)
    except ImportPathError as error:
        raise RewardError(f"{key}: {error}", error.remedy) from error
    if not callable(function):
        raise RewardError(f"{key}: {name!r} is not a function")
    return function
