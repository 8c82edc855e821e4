"""The reward of a trajectory: a weighted sum of terms, read from a YAML list.

    rag_r1:
      reward:
        - {term: em, weight: 1.0}
        - {term: f1, weight: 0.5, name: partial}    # `name` is its key in the logs: the term by default

Everything is checked when the list is read, so a wrong entry costs no GPU second. Calling the sum gives one
flat record with the same keys for every sample: `score` (the sum), every term's own value before its weight,
and `missing_terms`.

A term that could not be judged (it returned None, or a number that is not finite) is left out of the sum; its
value is then None, which veRL's validation metrics leave out of their means, and `missing_terms` counts it. A
term that raises ends the run with its name: that is a fault in code, and a reward of 0 would hide it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol
from rag_r1.rewards.normalise import as_golds
from rag_r1.rewards.registry import RewardError, TermFunction, find_term

_KEY = "rag_r1.reward"
_TAKEN = ("score", "missing_terms")


@dataclass(frozen=True)
class Term:
    """One entry of the list: what it is called in the logs, what it weighs, and what computes it."""

    name: str
    weight: float
    function: TermFunction
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, trajectory: Trajectory, golds: list[str]) -> float | None:
        """The term's value, or None if it could not be judged. Raises RewardError if the function raises."""
        try:
            value = self.function(trajectory, golds, **self.options)
            return float(value) if value is not None and math.isfinite(value) else None
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise RewardError(
                f"reward term {self.name!r} failed on trajectory {trajectory.id!r}: {what}"
            ) from error


@dataclass(frozen=True)
class RewardSum:
    """Terms and their weighted sum; see the module's paragraph."""

    terms: tuple[Term, ...]

    @classmethod
    def from_config(cls, config: Sequence[Mapping[str, Any]], protocol: Protocol | None = None) -> RewardSum:
        """From a list of `{term, weight, name?, ...options}`.

        `protocol` is given to the terms that ask for it; needed there if it is not a shipped one. Raises
        RewardError naming the key, e.g. `rag_r1.reward[1].weight`.
        """
        if isinstance(config, str | Mapping) or not isinstance(config, Sequence) or not config:
            raise RewardError(f"{_KEY} must be a list of at least one {{term, weight, ...}}, not {config!r}")
        terms: list[Term] = []
        for i, entry in enumerate(config):
            term = _read(entry, f"{_KEY}[{i}]", protocol)
            if term.name in (*_TAKEN, *(other.name for other in terms)):
                raise RewardError(f"{_KEY}[{i}]: the name {term.name!r} is taken; give it another `name`")
            terms.append(term)
        return cls(tuple(terms))

    def __call__(self, trajectory: Trajectory, golds: Any) -> dict[str, float | None]:
        """`{"score": sum, "<name>": value, ..., "missing_terms": count}` for one trajectory."""
        answers = as_golds(golds)
        values = {term.name: term(trajectory, answers) for term in self.terms}
        known = [(term.weight, value) for term in self.terms if (value := values[term.name]) is not None]
        score = sum((weight * value for weight, value in known), 0.0)
        return {"score": score, **values, "missing_terms": float(len(values) - len(known))}

    def unjudged(self) -> dict[str, float | None]:
        """The record of a trajectory that is not to be judged: no term has a value."""
        values = {term.name: None for term in self.terms}
        return {"score": None, **values, "missing_terms": float(len(values))}


def _read(entry: Any, key: str, protocol: Protocol | None) -> Term:
    if not isinstance(entry, Mapping):
        raise RewardError(f"{key} must be {{term, weight, ...}}, not {entry!r}")
    options = dict(entry)
    path = options.pop("term", None)
    if not isinstance(path, str):
        raise RewardError(f"{key}.term must name a reward term, not {path!r}")
    function = find_term(path, f"{key}.term")
    weight = options.pop("weight", 1.0)
    if not _is_number(weight):
        raise RewardError(f"{key}.weight must be a finite number, not {weight!r}")
    name = options.pop("name", path.rpartition(":")[2])
    if not isinstance(name, str) or not name:
        raise RewardError(f"{key}.name must be a text, not {name!r}")
    _check_options(function, options, path, key)
    if "protocol" in inspect.signature(function).parameters:
        options["protocol"] = protocol
    return Term(name, float(weight), function, options)


def _check_options(function: TermFunction, options: dict[str, Any], path: str, key: str) -> None:
    """Options are the function's keyword-only parameters, have the type of their defaults, and are one of the
    values of a `Literal` where they are annotated with one."""
    if inspect.iscoroutinefunction(function):
        raise RewardError(f"{key}.term: {path!r} is `async`; a term is a plain function")
    parameters = inspect.signature(function).parameters
    known = {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and n != "protocol"}
    choices = _choices(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name, value in options.items():
        if name in known:
            _check_type(value, known[name].default, f"{key}.{name}")
            if value not in (one_of := choices.get(name, (value,))):
                raise RewardError(f"{key}.{name} must be one of {', '.join(map(str, one_of))}, not {value!r}")
        elif name in parameters or not takes_any:
            listed = ", ".join(known) or "none"
            raise RewardError(f"{key}.{name}: {path!r} has no such option (its options: {listed})")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in options:
            raise RewardError(f"{key}.{name} is missing: {path!r} needs it")


def _choices(function: TermFunction) -> dict[str, tuple]:
    """The values of the parameters that are annotated with a Literal."""
    try:
        hints = get_type_hints(function)
    except Exception:  # annotations of a term of one's own may name anything; they promise nothing then
        return {}
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def _check_type(value: Any, default: Any, key: str) -> None:
    """A number for a number, a flag for a flag, a text for a text; anything if the default says nothing."""
    if isinstance(default, int | float) and not isinstance(default, bool):
        if not _is_number(value):
            raise RewardError(f"{key} must be a finite number, not {value!r}")
    elif isinstance(default, bool | str) and not isinstance(value, type(default)):
        raise RewardError(f"{key} must be {type(default).__name__}, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
