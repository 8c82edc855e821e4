"""The registry of reward terms, and how to add your own.

A term is a function `(trajectory, golds, **options)`; its options are keyword-only parameters, so the
signature documents them and a wrong one is refused when a run starts. Write the function anywhere,

    def short_answer(trajectory, golds, *, most_words: int = 5) -> float:
        return float(trajectory.answer is not None and len(trajectory.answer.split()) <= most_words)

and name it in the configuration by its import path:

    rag_r1:
      reward:
        - {term: em, weight: 1.0}
        - {term: "my_package.my_rewards:short_answer", weight: 0.1, most_words: 3}

Inside this package, `@register("name")` gives a term a short name. A term with a keyword `protocol` receives
the run's Protocol, for its tags.

A term returns one number, or a list with one number for each turn, which sum to its value (credit.py). If it
cannot judge a trajectory, it returns None (or a number that is not finite), or raises `CannotJudgeError` with
a reason. It may be `async def`, to call a model or a server: then its entry may set `timeout_s`, the seconds
that it may take for one trajectory (term_call.py). docs/rewards.md shows both.

What a signature cannot declare about options is checked by a function `check`: from the options and the
entry's key to a list of faults. `@register` takes it; on a function of your own it is the attribute
`check_options`. In the same way `parts` (attribute `credit_parts`) names the parts of the policy's text that
a term's value is about (spans.py, token_credit.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rag_r1.options.import_path import ImportPathError, import_object

#: Returns one number, one for each turn, or None; if async, an awaitable of these.
TermFunction = Callable[..., Any]
#: From a term's options and its entry's key to the faults of the options.
OptionCheck = Callable[[Mapping[str, Any], str], list[str]]
#: From a trajectory, the term's value and, as keywords, `protocol` (or None) and the term's options to the
#: parts of the value (spans.SpanValue).
CreditParts = Callable[..., list[Any]]

_terms: dict[str, TermFunction] = {}


class RewardError(ValueError):
    """An entry under `rag_r1.reward` is wrong (the message names the key), or a term has failed. `remedy`:
    what to do, where the message does not say it."""

    def __init__(self, message: str, remedy: str = ""):
        super().__init__(message)
        self.remedy = remedy


class CannotJudgeError(Exception):
    """Raised by a term that could not judge a trajectory: the term is left out of that sample. The message
    is the reason; it is kept in the trajectory's record."""


#: The old name, for one release: terms of a user's own import it.
Refused = CannotJudgeError


def register(
    name: str, check: OptionCheck | None = None, parts: CreditParts | None = None
) -> Callable[[TermFunction], TermFunction]:
    """Decorator that registers a function as the term `name`, whose options are checked by `check` and whose
    value is about the tokens that `parts` names. Raises RewardError if the name is taken."""

    def add(function: TermFunction) -> TermFunction:
        if name in _terms:
            raise RewardError(f"there is a reward term {name!r} already: choose another name")
        if check is not None:
            function.check_options = check
        if parts is not None:
            function.credit_parts = parts
        _terms[name] = function
        return function

    return add


def term_names() -> list[str]:
    """Returns the names of the registered terms."""
    return sorted(_terms)


def find_term(name: Any, key: str) -> TermFunction:
    """Returns the function of a registered name or an import path. Raises RewardError naming `key`."""
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
