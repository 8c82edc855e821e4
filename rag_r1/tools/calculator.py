"""The tool `calculator`: evaluates arithmetic without running code.

An expression is parsed into Python's syntax tree, and the tree is walked; only numbers, the operators and the
functions below are known. Numbers and powers are bounded, so that no expression takes long: a result is a
whole number of at most a thousand digits, or a finite floating-point number. Anything else is a Refusal,
which tells the policy what was wrong.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from rag_r1.options.declare import options, options_from
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
    """Python's `round`, which would compute 10 ** -digits for any number of digits."""
    if not isinstance(digits, int) or abs(digits) > 300:
        raise ValueError("it rounds to no number of digits from -300 to 300")
    return round(number, digits)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(math, name) for name in "ceil cos exp floor log log10 sin sqrt tan".split()},
    **{"abs": abs, "max": max, "min": min, "round": _round},
}
#: How people write operators, and how Python does. Its own ^ binds less than +, so it is replaced here.
_OPERATOR_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**"})
_PARAMETERS = schema_of(
    {"query": {"type": "string", "description": "an expression, such as (3 + 4) * 2 ** 5"}}
)


@options("rag_r1.tools.NAME")
class CalculatorOptions:
    """The calculator has no options of its own."""


def make_calculator(options: Mapping[str, Any], key: str) -> FunctionTool:
    """The tool. Raises OptionsError for any option."""
    options_from(CalculatorOptions, options, key)
    description = "Calculates: + - * / // % **, " + ", ".join(sorted(_FUNCTIONS)) + "."

    async def answer(query: str) -> str | Refusal:
        try:
            return calculate(query)
        except ValueError as error:
            return Refusal(f"The calculator cannot do that: {error}.")

    return FunctionTool("calculator", description, _PARAMETERS, answer)


def calculate(expression: str) -> str:
    """The value of an expression. Raises ValueError."""
    if len(expression) > MAX_CHARS:
        raise ValueError(f"the expression has more than {MAX_CHARS} characters")
    try:
        tree = ast.parse(expression.translate(_OPERATOR_SIGNS).strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError("it is no arithmetic expression") from None
    try:
        value = _value(tree.body)
    except ZeroDivisionError:
        raise ValueError("it divides by zero") from None
    except (OverflowError, RecursionError):
        raise ValueError("a number becomes too large") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _value(node: ast.AST) -> int | float:
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
        if node.func.id in _FUNCTIONS:
            return _bounded(_FUNCTIONS[node.func.id](*map(_value, node.args)))
        raise ValueError(f"there is no function {node.func.id!r}, but {', '.join(sorted(_FUNCTIONS))}")
    raise ValueError("it is no arithmetic expression of numbers")


def _power(base: int | float, exponent: int | float) -> int | float:
    """The power, if its size is bounded before it is computed."""
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent >= 0 and abs(base) > 1 and math.log2(abs(base)) * exponent > MAX_BITS:
            raise OverflowError
        if exponent < 0:
            base = float(base)
    value = base**exponent
    if isinstance(value, complex):
        raise ValueError("a negative number has no such root")
    return _bounded(value)


def _bounded(value: int | float) -> int | float:
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise OverflowError
    elif not math.isfinite(value):
        raise OverflowError
    return value
