"""RAG-R1 trains a language model to search, as an extension of veRL. The README describes the packages.

The names below are the Python API: `from rag_r1 import SearchAgent`. Each is imported at its first use, so
that `import rag_r1`, and with it `--help` of every command, stays fast.
"""

from importlib import import_module
from typing import Any

from rag_r1.system import renamed_modules

__version__ = "0.1.0"
#: Name in the Python API -> the module that defines it.
_HOMES = {
    "SearchAgent": "rag_r1.serving.search_agent",
    "Episode": "rag_r1.agent",
    "Budget": "rag_r1.agent",
    "Trajectory": "rag_r1.agent",
    "Protocol": "rag_r1.protocols",
    "load_protocol": "rag_r1.protocols",
    "Document": "rag_r1.protocols",
    "Failure": "rag_r1.protocols",
    "RewardSum": "rag_r1.rewards",
    "tool": "rag_r1.tools",
}
__all__ = list(_HOMES)

renamed_modules.install()  # the old names of modules stay importable for one release


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
