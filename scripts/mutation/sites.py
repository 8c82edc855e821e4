"""Finds places in Python source where one small change makes a mutant.

`sites` parses a source with `ast` and lists its places in order, each with the qualified name of the
function, class, constant or field that contains it (an empty name for other statements of a module). The
changes concern comparisons, `and` and `or`, arithmetic, numbers, True and False, returned values, `not`,
conditions, defaults of arguments, and bounds of slices. Strings, f-strings, annotations, decorators, and code
that runs only for a type checker or as a script are not changed. A mutant is the source with one expression
replaced, so that the rest of the text is the same.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
#: Comparisons whose change is already the negation.
_NEGATED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
#: Fields with lists of statements and clauses, which do not count as part of the statement itself.
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list")
_ANNOTATIONS = ("annotation", "returns")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Site:
    """A place and its change."""

    #: The kind of change, such as `comparison`.
    kind: str
    #: Qualified name of the function, class, constant or field that contains it.
    name: str
    #: Lines of the expression.
    lines: range
    #: Lines of the statement without its body.
    statement_lines: range
    statement: ast.stmt = field(repr=False)
    #: The node that is replaced, and the node or the text in its place.
    original: ast.AST = field(repr=False)
    change: ast.AST | str = field(repr=False)
    #: Whether it runs when the module is imported: at module or class level, or as a default.
    at_import: bool = False
    #: Its number among the places of all kinds in `name`, from 0.
    ordinal: int = 0
    #: The number of places in `name`.
    siblings: int = 0

    @property
    def shape(self) -> str:
        """A digest of the statement's syntax without identifiers, texts and annotations."""
        return hashlib.sha256(repr(_shape(self.statement)).encode()).hexdigest()[:16]

    def mutated(self, source: str) -> str:
        """Return the source of the module with the change. Raises ValueError if ast cannot write it."""
        return self._changed(source, 0, len(source.encode()))

    def statements(self, source: str) -> tuple[str, str]:
        """Return the text of the statement, without its body, before and after the change."""
        start, _ = _span(source, self.statement)
        lines = source.encode().splitlines(keepends=True)
        end = max(_span(source, self.original)[1], sum(map(len, lines[: self.statement_lines.stop - 1])))
        before = source.encode()[start:end].decode()
        return before.strip(), self._changed(source, start, end).strip()

    def _changed(self, source: str, start: int, end: int) -> str:
        """Return the text between two offsets in bytes, with the change."""
        data = source.encode()
        first, last = _span(source, self.original)
        text = self.change if isinstance(self.change, str) else ast.unparse(self.change)
        if isinstance(self.change, ast.expr) and not isinstance(self.change, (ast.Constant, ast.Slice)):
            text = f"({text})"
        return (data[start:first] + text.encode() + data[last:end]).decode()


def sites(source: str) -> list[Site]:
    """Return all places of a module, in an order that does not depend on formatting.

    Raises SyntaxError if the source is not valid Python.
    """
    places = list(_block_sites(ast.parse(source).body, "", True))
    siblings = Counter(site.name for site in places)
    numbers: Counter[str] = Counter()
    numbered = []
    for site in places:
        numbered.append(replace(site, ordinal=numbers[site.name], siblings=siblings[site.name]))
        numbers[site.name] += 1
    return numbered


def _block_sites(statements: list[ast.stmt], name: str, at_import: bool) -> Iterator[Site]:
    """Yield the places of statements in the scope `name`, including nested statements."""
    for statement in statements:
        inner, inner_at_import = name, at_import
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            inner = f"{name}.{statement.name}" if name else statement.name
            inner_at_import = at_import and isinstance(statement, ast.ClassDef)
        elif at_import and (target := _target(statement)):
            inner = f"{name}.{target}" if name else target
        if isinstance(statement, ast.If) and _is_not_imported(statement.test):
            yield from _block_sites(statement.orelse, name, at_import)
            continue
        bodies = list(_bodies(statement))
        end = min((block[0].lineno for block in bodies), default=statement.end_lineno + 1)
        lines = range(statement.lineno, max(end, statement.lineno + 1))
        for kind, original, change in _header_changes(statement):
            span = range(original.lineno, original.end_lineno + 1)
            yield Site(kind, inner, span, lines, statement, original, change, at_import)
        for block in bodies:
            yield from _block_sites(block, inner, inner_at_import)


def _target(statement: ast.stmt) -> str | None:
    """Return the constant or field that a statement of a module or class defines, or None."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return targets[0].id if isinstance(targets[0], ast.Name) and hasattr(statement, "value") else None


def _is_not_imported(test: ast.expr) -> bool:
    """Return whether a condition is false in an import, since it contains `TYPE_CHECKING` or `__name__`."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return bool(names & {"TYPE_CHECKING", "__name__"})


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of statements in a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block
    for clause in [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]:
        yield clause.body


def _header_changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST | str]]:
    """Yield the changes, as `_changes` does, in an expression or in a statement without its body."""
    yield from _changes(node)
    for name, value in ast.iter_fields(node):
        if name in _ANNOTATIONS or (name in _BODIES and isinstance(value, list)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield from _header_changes(child)
    for case in getattr(node, "cases", ()):
        if case.guard is not None:
            yield from _header_changes(case.guard)


def _copy_with(node: ast.AST, **fields: object) -> ast.AST:
    """Return a shallow copy of a node with other values of these fields."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST | str]]:
    """Yield the changes of a node: the kind, the node to replace, and the node or text in its place."""
    match node:
        case ast.Compare(ops=ops):
            for index, operator in enumerate(ops):
                other = _COMPARISONS[type(operator)]()
                yield "comparison", node, _copy_with(node, ops=[*ops[:index], other, *ops[index + 1 :]])
        case ast.BoolOp(op=operator):
            opposite = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "boolean", node, _copy_with(node, op=opposite)
        case ast.BinOp(op=operator, left=left, right=right) if type(operator) in _ARITHMETIC:
            if not _is_text(left) and not _is_text(right):
                yield "arithmetic", node, _copy_with(node, op=_ARITHMETIC[type(operator)]())
        case ast.AugAssign(op=operator, value=value) if type(operator) in _ARITHMETIC and not _is_text(value):
            yield "arithmetic", node, _copy_with(node, op=_ARITHMETIC[type(operator)]())
        case ast.Constant(value=bool(value)):
            yield "truth value", node, repr(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "number", node, repr(value + 1)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, operand
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield "return", node, "return None"
        case ast.If(test=test) | ast.IfExp(test=test):
            compared = (
                isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], _NEGATED)
            )
            if not compared and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
                yield "condition", test, ast.UnaryOp(ast.Not(), test)
        case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
            for default in [*args.defaults, *args.kw_defaults]:
                is_number = isinstance(default, ast.Constant) and isinstance(default.value, (int, float))
                if default is not None and not _is_none(default) and not is_number:
                    yield "default", default, "None"
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None:
                yield "slice", node, _copy_with(node, lower=None)
            if upper is not None:
                yield "slice", node, _copy_with(node, upper=None)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _shape(value: object) -> object:
    """Return the syntax of a value without texts and annotations, for comparison."""
    if isinstance(value, (str, bytes, ast.JoinedStr)):
        return "text"
    if isinstance(value, ast.AST):
        fields = (
            _shape(child)
            for name, child in ast.iter_fields(value)
            if name not in _ANNOTATIONS and not (name in _BODIES and isinstance(child, list))
        )
        return (type(value).__name__, *fields)
    if isinstance(value, list):
        return [_shape(child) for child in value]
    return value


def _span(source: str, node: ast.AST) -> tuple[int, int]:
    """Return the offsets of the start and the end of a node, in bytes of UTF-8."""
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    return start, sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
