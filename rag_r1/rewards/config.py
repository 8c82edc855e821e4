"""Reads one entry of `rag_r1.reward`: `{term, weight, name?, timeout_s?, ...options}`.

The options are the keyword-only parameters of the term's function. A value must have the type of the
parameter's default and, if the parameter is annotated with a `Literal`, be one of its values; a term may
check more (registry.py). Two keywords are special: `protocol` is that of the run and cannot be set here, and
`timeout_s` is an option of every async term (term_call.py). A function with parameters of these names
receives the values.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from sys import float_info
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rag_r1.protocols import Protocol
from rag_r1.rewards.registry import RewardError, TermFunction, find_term
from rag_r1.rewards.term_call import DEFAULT_TIMEOUT_S, Term, is_async


def read_entry(entry: Any, key: str, protocol: Protocol | None) -> tuple[Term | None, list[RewardError]]:
    """Return the term of an entry and its faults. If there are faults, the term is None. `key` is the path of
    the entry in the configuration."""
    if not isinstance(entry, Mapping):
        return None, [RewardError(f"{key} must be {{term, weight, ...}}, not {entry!r}")]
    faults: list[RewardError] = []
    options = dict(entry)
    term = options.pop("term", None)
    weight = options.pop("weight", 1.0)
    if not _is_number(weight):
        faults.append(RewardError(f"{key}.weight must be a finite number, not {weight!r}"))
    if not isinstance(term, str):
        return None, [*faults, RewardError(f"{key}.term must name a reward term, not {term!r}")]
    name = options.pop("name", term.rpartition(":")[2])
    if not isinstance(name, str) or not name:
        faults.append(RewardError(f"{key}.name must be a text, not {name!r}"))
    try:
        function = find_term(term, f"{key}.term")
        parameters = inspect.signature(function).parameters
    except RewardError as fault:
        return None, [*faults, fault]
    except ValueError:  # some built-in functions have none
        return None, [*faults, RewardError(f"{key}.term: {term!r} has no signature that names its options")]
    special: dict[str, Any] = {"protocol": protocol}
    if is_async(function):
        special["timeout_s"] = options.pop("timeout_s", DEFAULT_TIMEOUT_S)
    faults += map(RewardError, _option_faults(function, options, special, term, key))
    if faults:
        return None, faults
    options |= {keyword: value for keyword, value in special.items() if keyword in parameters}
    timeout_s = float(special.get("timeout_s", DEFAULT_TIMEOUT_S))
    return Term(name, float(weight), function, options, timeout_s), []


def _option_faults(
    function: TermFunction, options: dict[str, Any], special: Mapping[str, Any], term: str, key: str
) -> Iterator[str]:
    """Yield the faults of the time limit in `special`, those of the signature of the function, those of the
    options according to it, and those that the term's own check finds."""
    timeout_s = special.get("timeout_s", DEFAULT_TIMEOUT_S)
    if not (_is_number(timeout_s) and timeout_s > 0):
        yield f"{key}.timeout_s must be a number of seconds above 0, not {timeout_s!r}"
    signature = inspect.signature(function)
    parameters = signature.parameters
    positional = [p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    try:
        signature.replace(parameters=positional).bind(None, None)
    except TypeError as error:
        yield f"{key}.term: {term!r} cannot be called with (trajectory, golds): {error}"
    keywords = {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY and name not in special}
    choices = _choices(function)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name, value in options.items():
        if name in keywords:
            required_kind = _unmet_kind(value, keywords[name].default)
            if required_kind is not None:
                yield f"{key}.{name} must be {required_kind}, not {value!r}"
            elif name in choices and value not in choices[name]:
                yield f"{key}.{name} must be one of {', '.join(map(str, choices[name]))}, not {value!r}"
        elif name in (*parameters, *special) or not takes_any:
            names = [*keywords, *(["timeout_s"] if "timeout_s" in special else [])]
            yield f"{key}.{name}: {term!r} has no such option (its options: {', '.join(names) or 'none'})"
    for name, parameter in keywords.items():
        if parameter.default is parameter.empty and name not in options:
            yield f"{key}.{name} is missing: {term!r} needs it"
    if (check := getattr(function, "check_options", None)) is not None:
        yield from check(options, key)


def _choices(function: TermFunction) -> dict[str, tuple]:
    """Return the allowed values of the parameters that are annotated with a Literal, by name."""
    try:
        hints = get_type_hints(function)
    except Exception:  # a user's annotations may be unresolvable; they are then ignored
        return {}
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def _unmet_kind(value: Any, default: Any) -> str | None:
    """Return what kind of value the default requires (a number, a flag or a text) if `value` is not of that
    kind; None if it is, or if the default is none of these."""
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, int | float):
        return None if _is_number(value) else "a finite number"
    if isinstance(default, str):
        return None if isinstance(value, str) else "a text"
    return None


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a float can hold."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= float_info.max  # `math.isfinite` raises for a larger whole number
