"""An environment as `pip install "rag-r1[EXTRA]"` makes it: its packages, and no other.

A virtual environment whose site-packages are links to what is installed here: the packages that the project's
base dependencies and its extras ask for, directly or through each other, and the project's own three. What an
extra does not bring cannot be imported there.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OWN = ("rag_r1", "retrieval_server", "data_process")


def requirements(*extras: str) -> Iterator[Requirement]:
    """What the project asks for, with these extras of its own and with those that they name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    for text in texts:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == "rag-r1":
            yield from requirements(*requirement.extras)
        elif requirement.marker is None or requirement.marker.evaluate():
            yield requirement


def closure(*extras: str) -> set[str]:
    """The names of all packages that pip would install."""
    done: set[tuple[str, str]] = set()
    todo = [
        (canonicalize_name(found.name), extra) for found in requirements(*extras) for extra in _with(found)
    ]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        for text in distribution(name).requires or ():
            found = Requirement(text)
            if found.marker is None or found.marker.evaluate({"extra": extra}):
                todo += [(canonicalize_name(found.name), more) for more in _with(found)]
    return {name for name, _ in done}


def _with(requirement: Requirement) -> list[str]:
    return ["", *sorted(requirement.extras)]


class BareEnvironment:
    """The environment in a folder; `extras` are those of the project."""

    def __init__(self, folder: Path, *extras: str):
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        (site_packages,) = folder.glob("lib/python*/site-packages")
        for name in closure(*extras):
            installed = distribution(name)
            for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
                (site_packages / top).symlink_to(installed.locate_file(top))
        for package in OWN:
            (site_packages / package).symlink_to(ROOT / package)

    def command(self, *words: str | Path) -> list[str]:
        """`rag-r1` and its arguments, as the console script would run it."""
        return [
            str(self.python),
            "-c",
            "import sys; from rag_r1.cli import main; sys.exit(main())",
            *map(str, words),
        ]

    def variables(self) -> dict[str, str]:
        """The process's environment without what could add packages to it."""
        return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(self, *words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run `rag-r1` with these arguments to its end."""
        return self._run(self.command(*words), cwd)

    def python_run(self, *words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments to its end."""
        return self._run([str(self.python), *map(str, words)], cwd)

    def _run(self, command: list[str], cwd: Path | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=cwd, env=self.variables(), capture_output=True, text=True, timeout=120
        )
