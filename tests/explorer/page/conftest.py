"""A browser, runs to look at, and `rag-r1 view` over them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.explorer.page.sample_runs import GOLD, view_server, write_evaluation, write_training
from tests.serving.browser import chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[int]:
    with chromium(tmp_path_factory.mktemp("profile")) as port:
        yield port


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A training and two evaluations of the same questions: 18 + 3 + 3 trajectories."""
    folder = tmp_path_factory.mktemp("runs")
    write_training(folder / "grpo")
    write_evaluation(folder / "eval" / "before", GOLD, "Mill Creek", "Mill Creek")
    write_evaluation(folder / "eval" / "after", "Mill Creek", GOLD, None)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def url(runs, cache) -> Iterator[str]:
    with view_server(runs) as address:
        yield address
