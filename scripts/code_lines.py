"""Counts lines of code and of documentation, by folder.

    python scripts/code_lines.py              # this checkout
    python scripts/code_lines.py ../other     # another one, for a comparison

A line of code has a token that is neither a comment nor part of a docstring. A line of documentation belongs
to a docstring or has a comment. Blank lines are not counted. tests/test_budget.py compares the totals with
its limits.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Part -> the folders that are counted together.
PARTS = {"package": ("rag_r1", "data_process", "examples"), "tests": ("tests",)}
#: Matches strings and comments, so that a quote or a hash inside one of them begins no other.
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|\'{3}(?:\\.|[^\\])*?\'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*''',
    re.DOTALL,
)
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)


@dataclass
class LineCount:
    """Numbers of lines of some modules."""

    code: int = 0
    #: Lines of docstrings and comments.
    documentation: int = 0

    def __add__(self, other: LineCount) -> LineCount:
        return LineCount(self.code + other.code, self.documentation + other.documentation)


def count_lines(source: str) -> LineCount:
    """Count the lines of a module. Raises SyntaxError if the source is not valid Python."""
    docstrings: set[int] = set()
    statements: list[ast.AST] = [ast.parse(source)]
    for node in statements:
        statements += [child for child in ast.iter_child_nodes(node) if isinstance(child, _STATEMENTS)]
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    # A pattern is used since tokenize takes three times as long, and lines are counted in every test run.
    comments: set[int] = set()
    strings: set[int] = set()
    first, end = 1, 0
    for match in _STRING_OR_COMMENT.finditer(source):
        first, end = first + source.count("\n", end, match.start()), match.start()
        last = first + match[0].count("\n")
        (comments if match[0][0] == "#" else strings).update(range(first, last + 1))
    lines = _STRING_OR_COMMENT.sub(lambda match: "\n" * match[0].count("\n"), source).splitlines()
    code = strings.union(number for number, line in enumerate(lines, 1) if line.strip())
    return LineCount(len(code - docstrings), len(docstrings | comments))


def count_folder(folder: Path) -> dict[str, LineCount]:
    """Count the lines of the modules below a folder, by direct subfolder (`.` for modules in the folder)."""
    counts: dict[str, LineCount] = defaultdict(LineCount)
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        counts[parts[0] if len(parts) > 1 else "."] += count_lines(path.read_text(encoding="utf-8"))
    return dict(counts)


def count_part(root: Path, part: str) -> LineCount:
    """Count the lines of one of PARTS in a checkout."""
    folders = [count_folder(root / name) for name in PARTS[part]]
    return sum((count for folder in folders for count in folder.values()), LineCount())


def main() -> None:
    """Print the table of all folders and parts."""
    parser = argparse.ArgumentParser(description="Count lines of code and of documentation, by folder.")
    parser.add_argument("checkout", type=Path, nargs="?", default=ROOT, help="default: this one")
    root = parser.parse_args().checkout
    if not (root / "rag_r1").is_dir():
        parser.error(f"{root} is not a checkout: it has no folder rag_r1")
    print(f"{'':36}{'code':>8}{'documentation':>15}")
    for part, names in PARTS.items():
        for name in names:
            for folder, count in count_folder(root / name).items():
                print(f"{name + '/' + folder:36}{count.code:>8,}{count.documentation:>15,}")
        total = count_part(root, part)
        print(f"{part:36}{total.code:>8,}{total.documentation:>15,}\n")


if __name__ == "__main__":
    main()
