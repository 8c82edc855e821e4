"""A cache folder for each test, and stores that are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from rag_r1.explorer.store import Store


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rag-r1" / "explorer"


@pytest.fixture
def read() -> Iterator[Callable[..., Store]]:
    """Opens a store of some paths and reads what is there."""
    with ExitStack() as opened:

        def open_store(*paths: Path) -> Store:
            store = opened.enter_context(closing(Store(paths)))
            store.refresh()
            return store

        yield open_store
