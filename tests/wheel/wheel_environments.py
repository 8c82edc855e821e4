"""The project's wheel, built as pip builds it, and environments to install it in, without a network.

    bare       a virtual environment with the base dependencies and nothing else: links to those distributions
               of the running environment that the wheel's own metadata asks for, and theirs
    complete   a virtual environment with everything of the running one, through a `.pth` file, except this
               project, whose editable installation would lead to the repository

The wheel is unpacked into both, and its console script is made from its entry point.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "rag-r1"


def build_wheel(out: Path, project: Path = ROOT) -> Path:
    """Build the project in the running environment, which has the build's requirements; returns the wheel."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"the wheel was not built:\n{done.stdout}{done.stderr}")
    (wheel,) = out.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment in which the wheel is installed."""

    def __init__(self, folder: Path, wheel: Path):
        command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(command, check=True, timeout=120)
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)
        (self.metadata,) = self.site.glob("rag_r1-*.dist-info")
        self._console_scripts()

    @classmethod
    def bare(cls, folder: Path, wheel: Path) -> Environment:
        made = cls(folder, wheel)
        own = metadata.Distribution.at(made.metadata)
        for distribution in closure(own.requires or ()):
            for entry in top_level(distribution):
                if not (link := made.site / entry.name).exists():
                    link.symlink_to(entry)
        return made

    @classmethod
    def complete(cls, folder: Path, wheel: Path) -> Environment:
        """What the wheel does not have is found in the running environment's folder. Python reads the `.pth`
        files of its own folder only, so no editable installation is found there."""
        made = cls(folder, wheel)
        (made.site / "running_environment.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        return made

    def run(self, *words: object, cwd: Path, timeout: float = 120, **variables: str):
        """Run a program of the environment in a folder; its output is captured."""
        return subprocess.run(
            [str(self.folder / "bin" / str(words[0])), *map(str, words[1:])],
            cwd=cwd,
            env=self.variables(**variables),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def variables(self, **more: str) -> dict[str, str]:
        """As in a shell in which the environment is active; nothing leads to the repository."""
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        return {**kept, "PATH": path, "VIRTUAL_ENV": str(self.folder), **more}

    def _console_scripts(self) -> None:
        points = ConfigParser()
        points.read(self.metadata / "entry_points.txt")
        for name, point in points["console_scripts"].items():
            module, _, function = point.partition(":")
            script = self.folder / "bin" / name
            lines = [f"#!{self.python}", "import sys", f"from {module} import {function}"]
            script.write_text("\n".join([*lines, f"sys.exit({function}())", ""]))
            script.chmod(0o755)


def closure(requirements: Iterator[str] | list[str] | tuple[str, ...]) -> list[metadata.Distribution]:
    """The installed distributions that requirements ask for without an extra, and what these require."""
    found: dict[str, metadata.Distribution] = {}
    pending = [(Requirement(text), "") for text in requirements]
    while pending:
        wanted, extra = pending.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        key = re.sub(r"[-_.]+", "-", wanted.name).lower()
        for one in ("", *wanted.extras):
            if f"{key}[{one}]" not in found:
                found[f"{key}[{one}]"] = distribution = metadata.distribution(wanted.name)
                pending += [(Requirement(text), one) for text in distribution.requires or ()]
    return list({found[key].metadata["Name"]: found[key] for key in found}.values())


def top_level(distribution: metadata.Distribution) -> list[Path]:
    """What a distribution has put directly into its folder of packages."""
    names = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    return [Path(str(distribution.locate_file(name))) for name in sorted(names)]
