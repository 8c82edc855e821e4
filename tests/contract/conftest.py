"""The installed veRL, the project's contacts with it, and their table: read once. Without veRL, a skip."""

from __future__ import annotations

import pytest

from tests.contract.contacts import Scan
from tests.contract.table import Table
from tests.contract.verl_source import Sources, installed


@pytest.fixture(scope="session")
def sources() -> Sources:
    packages = installed()
    if "verl" not in packages.roots:
        pytest.skip("veRL is not installed: its names cannot be compared")
    return packages


@pytest.fixture(scope="session")
def scan(sources) -> Scan:
    return Scan(sources)


@pytest.fixture(scope="session")
def table() -> Table:
    return Table.read()
