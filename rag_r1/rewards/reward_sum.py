"""The reward of a trajectory: a weighted sum of terms, read from a YAML list.

    rag_r1:
      reward:
        - {term: em, weight: 1.0}
        - {term: f1, weight: 0.5, name: partial}    # `name` is its key in the logs: the term by default

Everything is checked when the list is read, and all faults of all entries are told at once, so a wrong entry
costs no GPU second. Calling the sum gives one
flat record with the same keys for every sample: `score` (the sum), every term's own value before its weight,
and `missing_terms`.

A term that could not be judged (it returned None, or a number that is not finite) is left out of the sum; its
value is then None, which veRL's validation metrics leave out of their means, and `missing_terms` counts it. A
term that raises ends the run with its name: that is a fault in code, and a reward of 0 would hide it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rag_r1.agent import Trajectory
from rag_r1.protocols import Protocol
from rag_r1.rewards.registry import RewardError, TermFunction, find_term
from rag_r1.rows import as_golds

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
        RewardError naming every wrong key, e.g. `rag_r1.reward[1].weight`.
        """
        terms, faults = cls.read(config, protocol)
        if len(faults) == 1:
            raise faults[0]
        if faults:
            raise RewardError("; ".join(map(str, faults)))
        return terms

    @classmethod
    def read(
        cls, config: Sequence[Mapping[str, Any]], protocol: Protocol | None = None
    ) -> tuple[RewardSum, list[RewardError]]:
        """The terms without a fault, and every fault of the others."""
        if isinstance(config, str | Mapping) or not isinstance(config, Sequence) or not config:
            what = f"{_KEY} must be a list of at least one {{term, weight, ...}}, not {config!r}"
            return cls(()), [RewardError(what)]
        terms: list[Term] = []
        faults: list[RewardError] = []
        for i, entry in enumerate(config):
            wrong: list[RewardError] = []
            term = _read(entry, f"{_KEY}[{i}]", protocol, wrong)
            if term is not None and term.name in (*_TAKEN, *(other.name for other in terms)):
                what = f"{_KEY}[{i}]: the name {term.name!r} is taken; give it another `name`"
                wrong.append(RewardError(what))
            if term is not None and not wrong:
                terms.append(term)
            faults += wrong
        return cls(tuple(terms)), faults

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


def _read(entry: Any, key: str, protocol: Protocol | None, faults: list[RewardError]) -> Term | None:
    """The entry's term; what is wrong with it is added to `faults`. None if nothing can be said of it."""

    def wrong(message: str) -> None:
        faults.append(RewardError(message))

    if not isinstance(entry, Mapping):
        wrong(f"{key} must be {{term, weight, ...}}, not {entry!r}")
        return None
    options = dict(entry)
    path = options.pop("term", None)
    weight = options.pop("weight", 1.0)
    if not _is_number(weight):
        wrong(f"{key}.weight must be a finite number, not {weight!r}")
    if not isinstance(path, str):
        wrong(f"{key}.term must name a reward term, not {path!r}")
        return None
    name = options.pop("name", path.rpartition(":")[2])
    if not isinstance(name, str) or not name:
        wrong(f"{key}.name must be a text, not {name!r}")
    try:
        function = find_term(path, f"{key}.term")
    except RewardError as fault:
        faults.append(fault)
        return None
    faults += map(RewardError, _option_faults(function, options, path, key))
    if faults:
        return None
    if "protocol" in inspect.signature(function).parameters:
        options["protocol"] = protocol
    return Term(name, float(weight), function, options)


def _option_faults(function: TermFunction, options: dict[str, Any], path: str, key: str) -> Iterator[str]:
    """Options are the function's keyword-only parameters, have the type of their defaults, and are one of the
    values of a `Literal` where they are annotated with one."""
    if inspect.iscoroutinefunction(function):
        yield f"{key}.term: {path!r} is `async`; a term is a plain function"
        return
    parameters = inspect.signature(function).parameters
    known = {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and n != "protocol"}
    choices = _choices(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name, value in options.items():
        if name in known:
            kind = _type_fault(value, known[name].default)
            one_of = choices.get(name)
            if kind is not None:
                yield f"{key}.{name} must be {kind}, not {value!r}"
            elif one_of is not None and value not in one_of:
                yield f"{key}.{name} must be one of {', '.join(map(str, one_of))}, not {value!r}"
        elif name in parameters or not takes_any:
            yield f"{key}.{name}: {path!r} has no such option (its options: {', '.join(known) or 'none'})"
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in options:
            yield f"{key}.{name} is missing: {path!r} needs it"


def _choices(function: TermFunction) -> dict[str, tuple]:
    """The values of the parameters that are annotated with a Literal."""
    try:
        hints = get_type_hints(function)
    except Exception:  # annotations of a term of one's own may name anything; they promise nothing then
        return {}
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def _type_fault(value: Any, default: Any) -> str | None:
    """What the value must be and is not: a number for a number, a flag for a flag, a text for a text;
    anything if the default says nothing."""
    if isinstance(default, int | float) and not isinstance(default, bool):
        return None if _is_number(value) else "a finite number"
    if isinstance(default, bool | str) and not isinstance(value, type(default)):
        return type(default).__name__
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
