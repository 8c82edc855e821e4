"""The project's wheel, built as pip builds it, and environments to install it in, without a network.

    bare       a virtual environment as `pip install "rag-r1[EXTRA]"` makes it, with no extra or with some: it
               has links to those distributions of the running environment that the wheel's own metadata asks
               for, and theirs; what an extra does not bring cannot be imported there
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
from collections.abc import Iterable, Sequence
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
    def bare(cls, folder: Path, wheel: Path, *extras: str) -> Environment:
        environment = cls(folder, wheel)
        for distribution in environment.required(*extras):
            for entry in top_level(distribution):
                if not (link := environment.site / entry.name).exists():
                    link.symlink_to(entry)
        return environment

    @classmethod
    def complete(cls, folder: Path, wheel: Path) -> Environment:
        """What the wheel does not have is found in the running environment's folder. Python reads the `.pth`
        files of its own folder only, so no editable installation is found there."""
        environment = cls(folder, wheel)
        (environment.site / "running_environment.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        return environment

    def required(self, *extras: str) -> list[metadata.Distribution]:
        """What pip would install beside the wheel, for these of its extras."""
        return closure(metadata.Distribution.at(self.metadata), extras)

    def command(self, *words: object) -> list[str]:
        """A program of the environment and its arguments."""
        return [str(self.folder / "bin" / str(words[0])), *map(str, words[1:])]

    def run(
        self, *words: object, cwd: Path | None = None, timeout: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, in a folder, to its end; its output is captured."""
        return subprocess.run(
            self.command(*words),
            cwd=cwd,
            env=self.variables(**variables),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def variables(self, **more: str) -> dict[str, str]:
        """As in a shell in which the environment is active; nothing leads to the repository."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
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


def closure(project: metadata.Distribution, extras: Sequence[str] = ()) -> list[metadata.Distribution]:
    """The installed distributions that one asks for, with some of its extras, and what these ask for."""
    distributions = {(_key(PROJECT), extra): project for extra in ("", *extras)}
    pending = [(text, extra) for extra in ("", *extras) for text in project.requires or ()]
    while pending:
        text, of_extra = pending.pop()
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": of_extra}):
            continue
        name = _key(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) not in distributions:
                distribution = project if name == _key(PROJECT) else metadata.distribution(wanted.name)
                distributions[name, extra] = distribution
                pending += [(text, extra) for text in distribution.requires or ()]
    by_name = {name: distribution for (name, _), distribution in distributions.items()}
    return [distribution for name, distribution in by_name.items() if name != _key(PROJECT)]


def names(distributions: Iterable[metadata.Distribution]) -> set[str]:
    """Their normalised names."""
    return {_key(distribution.metadata["Name"]) for distribution in distributions}


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def top_level(distribution: metadata.Distribution) -> list[Path]:
    """What a distribution has put directly into its folder of packages."""
    names = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    return [Path(str(distribution.locate_file(name))) for name in sorted(names)]
