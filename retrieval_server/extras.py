"""Checks that the packages of optional extras are installed, and names the pip command for missing ones.

A server for BM25 runs without torch and FAISS, so the packages that a command needs depend on its options. It
searches for them, without importing them, before any other work.
"""

from __future__ import annotations

from importlib.util import find_spec

from retrieval_server.errors import UserError

#: The modules of the extra `bm25` that every server needs, and those that word search needs.
SERVER = ("fastapi", "httptools", "prometheus_client", "uvicorn")
WORDS = ("bm25s",)
#: The modules of the extra `retrieval`: those that search vectors, those that encode, and both.
INDEX = ("faiss",)
MODEL = ("sentence_transformers", "torch")
DENSE = (*INDEX, *MODEL)


def require_packages(subject: str, extra: str, modules: tuple[str, ...]) -> None:
    """Raise UserError if one of these top-level modules, which `subject` needs, is not installed."""
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        raise UserError(missing_message(subject, extra, missing))


def are_installed(modules: tuple[str, ...]) -> bool:
    """Return whether all these top-level modules are installed."""
    return all(map(_is_installed, modules))


def missing_message(subject: str, extra: str, missing: list[str]) -> str:
    """Return the message for modules that are not installed, with the pip command of their extra."""
    *others, last = missing
    names, are = (f"{', '.join(others)} and {last}", "are") if others else (last, "is")
    return f'{subject} needs {names}, which {are} not installed: pip install "rag-r1[{extra}]"'


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # an import hook forbids the module, or it has no specification
        return False
