"""The project's own scripts, in an environment whose `rag-r1` and `python` print how they are called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TOOL = '#!/bin/sh\nprintf "%s" "{name}"; printf " <%s>" "$@"; echo\nexit ${{FAIL:-0}}\n'


def make_project(folder: Path, *copied: str, setup: str = "") -> Path:
    """A project with copies of these files and folders, and with the tools of its environment; `setup`: a
    command of the script that sets it up."""
    for name in ("scripts", "bin"):
        (folder / name).mkdir()
    (folder / "scripts" / "setup_env.sh").write_text(f'{setup}\nexport PATH="$root/bin:$PATH"\n')
    for name in copied:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    for name in ("rag-r1", "python"):
        (folder / "bin" / name).write_text(_TOOL.format(name=name))
        (folder / "bin" / name).chmod(0o755)
    return folder


def call_script(project: Path, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """The end of a script that is called in the project with these variables of the environment."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        ["bash", str(project / script), *arguments],
        env={**inherited, **variables}, cwd=project, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
