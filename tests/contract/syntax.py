"""Parts of a syntax tree as text: the tree itself, signatures, the lines of code.

`ast.dump` will not do for a hash that must hold on Python 3.11 and 3.12: its text differs between them (3.12
added `type_params` and cuts the texts of some f-strings in other places, 3.13 leaves empty fields out), and
so does that of `ast.unparse`. `tree_text` writes the tree without positions, docstrings and empty fields, and
joins those texts; for each file of veRL 0.9.1 it is the same on 3.11, 3.12 and 3.13. A hash of the source's
lines would be as portable, but each reformatting would change it; comments are no part of a tree.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Collection, Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)


def imports(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """(local name, (module, name there)) of an import statement."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield (alias.asname, (alias.name, "")) if alias.asname else (top, (top, ""))
        return
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    module = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        yield alias.asname or alias.name, (module, alias.name)


def tree_text(node: object, apart: Collection[str] = ()) -> str:
    """A syntax tree as text; of the members of a class that are named in `apart`, only the name."""
    if isinstance(node, list):
        return "[" + ",".join(tree_text(item) for item in node if not is_text(item)) + "]"
    if isinstance(node, ast.JoinedStr):
        return f"JoinedStr({_pieces(node)})"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name, value in ast.iter_fields(node):
        if name in ("ctx", "kind", "type_comment") or value is None or value == []:
            continue
        if name == "body" and apart:
            value = [f"apart {item.name}" if is_one_of(item, apart) else item for item in value]
        fields.append(f"{name}={tree_text(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _pieces(node: ast.JoinedStr) -> str:
    """The parts of an f-string; texts that follow each other are one."""
    parts = [""]
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts[-1] += str(value.value)
        else:
            parts += [tree_text(value), ""]
    return repr(parts)


def is_one_of(node: ast.AST, names: Collection[str]) -> bool:
    """Whether this is the definition of a function with one of the names."""
    return isinstance(node, FUNCTIONS) and node.name in names


def is_text(node: object) -> bool:
    """A docstring, or a text that stands alone for another reason."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def outside_definitions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, and those within conditions, tries and `with`, but not within functions and classes."""
    for node in body:
        yield node
        if isinstance(node, DEFINITIONS):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from outside_definitions(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            yield from outside_definitions(handler.body)


def names_of(node: ast.stmt) -> list[str]:
    """The names that a statement defines or assigns."""
    if isinstance(node, DEFINITIONS):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def attributes_of_self(node: ast.AST) -> list[str]:
    """The attributes of `self` that an assignment sets."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat = [node for target in targets for node in getattr(target, "elts", [target])]
    return [
        node.attr
        for node in flat
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    ]


def first_line(node: ast.AST) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def arguments_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    word = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{word}({ast.unparse(node.args)}){returns}"


def class_signature(node: ast.ClassDef) -> str:
    bases = ", ".join(
        [*map(ast.unparse, node.bases), *(f"{k.arg}={ast.unparse(k.value)}" for k in node.keywords)]
    )
    constructor = next((n for n in node.body if isinstance(n, FUNCTIONS) and n.name == "__init__"), None)
    if constructor is not None:
        return f"class ({bases}), made by {arguments_of(constructor)}"
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    described = ", ".join(f"{n.target.id}: {ast.unparse(n.annotation)}" for n in fields)
    return f"class ({bases})" + (f", fields {described}" if described else "")


def without_comments(text: str) -> list[str]:
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return lines
