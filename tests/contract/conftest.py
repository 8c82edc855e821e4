"""The installed veRL, the project's contacts with it, and their table: read once. Without veRL, a skip."""

from __future__ import annotations

import pytest
from contacts import Scan
from table import Table
from verl_source import Sources, installed


@pytest.fixture(scope="session")
def sources() -> Sources:
    found = installed()
    if "verl" not in found.roots:
        pytest.skip("veRL is not installed: its names cannot be compared")
    return found


@pytest.fixture(scope="session")
def scan(sources) -> Scan:
    return Scan(sources)


@pytest.fixture(scope="session")
def table() -> Table:
    return Table.read()
