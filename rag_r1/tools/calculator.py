"""The tool `calculator`: evaluates arithmetic without running code.

An expression is parsed into Python's syntax tree, which is then evaluated node by node. Only numbers and the
operators, constants and functions below are allowed. Numbers and powers are bounded, so no expression takes
long: a result is a whole number of at most about a thousand digits, or a finite floating-point number.
Anything else is a Refusal, which tells the policy what is wrong.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from rag_r1.options.declare import options
from rag_r1.options.from_config import options_from
from rag_r1.protocols import Refusal
from rag_r1.tools.function_tool import FunctionTool, schema_of

#: Longest expression, in characters.
MAX_CHARS = 400
#: Largest whole number, in bits: about a thousand digits.
MAX_BITS = 3400

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS: dict[type, Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_CONSTANTS = {"pi": math.pi, "e": math.e}


def _round(number: int | float, digits: int = 0) -> int | float:
    """Return the number, rounded to this many digits after the point. Raises ValueError for more than 300
    digits before or after it, since Python's `round` computes a power of 10 with as many."""
    if not isinstance(digits, int) or abs(digits) > 300:
        raise ValueError("round takes a whole number of digits from -300 to 300")
    return round(number, digits)


def _math_function(name: str) -> Callable[..., int | float]:
    """Return a function of the module `math` whose ValueErrors are messages for the policy."""

    def call(*numbers: int | float) -> int | float:
        try:
            return getattr(math, name)(*numbers)
        except ValueError:
            raise ValueError(f"{name} is not defined for these numbers") from None

    return call


_FUNCTIONS: dict[str, Callable[..., int | float]] = {
    **{name: _math_function(name) for name in "ceil cos exp floor log log10 sin sqrt tan".split()},
    **{"abs": abs, "max": max, "min": min, "round": _round},
}
_FUNCTION_NAMES = ", ".join(sorted(_FUNCTIONS))
#: Function -> how many numbers it takes, and the same in words. All others take one number. No expression has
#: room for MAX_CHARS numbers.
_COUNTS = {
    **dict.fromkeys(("log", "round"), (range(1, 3), "one or two numbers")),
    **dict.fromkeys(("max", "min"), (range(2, MAX_CHARS), "at least two numbers")),
}
#: Mathematical operators -> Python's. In Python `^` is another operator, with a lower precedence than `+`.
_OPERATOR_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**"})
_PARAMETERS = schema_of(
    {"query": {"type": "string", "description": "an expression, such as (3 + 4) * 2 ** 5"}}
)


@options("rag_r1.tools.NAME")
class CalculatorOptions:
    """The calculator has no options of its own."""


def make_calculator(options: Mapping[str, Any], key: str) -> FunctionTool:
    """Return the tool `calculator`. Raises OptionsError for any option."""
    options_from(CalculatorOptions, options, key)
    description = f"Calculates: + - * / // % **, {_FUNCTION_NAMES}."

    async def answer(query: str) -> str | Refusal:
        try:
            return calculate(query)
        except ValueError as error:
            return Refusal(f"The calculator cannot do that: {error}.")

    return FunctionTool("calculator", description, _PARAMETERS, answer)


def calculate(expression: str) -> str:
    """Return the value of an expression. Raises ValueError, which says what is wrong with it."""
    if len(expression) > MAX_CHARS:
        raise ValueError(f"the expression has more than {MAX_CHARS} characters")
    try:
        tree = ast.parse(expression.translate(_OPERATOR_SIGNS).strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError("it is not an arithmetic expression") from None
    try:
        value = _value(tree.body)
    except ZeroDivisionError:
        raise ValueError("it divides by zero") from None
    except (OverflowError, RecursionError):
        raise ValueError("a number becomes too large") from None
    # Below 1e15 a float has all digits of a whole number, which is then shown like one.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _value(node: ast.AST) -> int | float:
    """Return the value of a node of the syntax tree. Raises ValueError for anything that is not allowed,
    ZeroDivisionError, and OverflowError if a number becomes too large."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return _SIGNS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _OPERATORS:
            return _bounded(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _call(node.func.id, list(map(_value, node.args)))
    raise ValueError(
        f"only numbers, + - * / // % **, pi, e and these functions are allowed: {_FUNCTION_NAMES}"
    )


def _call(name: str, numbers: list[int | float]) -> int | float:
    """Return the value of a function for these arguments. Raises the same errors as `_value`."""
    if name not in _FUNCTIONS:
        raise ValueError(f"there is no function {name!r}, but {_FUNCTION_NAMES}")
    counts, words = _COUNTS.get(name, (range(1, 2), "one number"))
    if len(numbers) not in counts:
        raise ValueError(f"{name} takes {words}")
    return _bounded(_FUNCTIONS[name](*numbers))


def _power(base: int | float, exponent: int | float) -> int | float:
    """Return a power. Raises OverflowError before a result that is too large is computed."""
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent >= 0 and abs(base) > 1 and math.log2(abs(base)) * exponent > MAX_BITS:
            raise OverflowError
    value = base**exponent
    if isinstance(value, complex):
        raise ValueError("a negative number has no such root")
    return _bounded(value)


def _bounded(value: int | float) -> int | float:
    """Return the value. Raises OverflowError if it has more than MAX_BITS bits or is infinite or NaN."""
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise OverflowError
    elif not math.isfinite(value):
        raise OverflowError
    return value
