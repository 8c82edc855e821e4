"""The recipes hold the published numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.recipes.composed_recipes import composed, values_of

PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text("utf-8"))


@pytest.mark.slow  # a composed recipe takes most of a second
@pytest.mark.parametrize("name", [name for name in PUBLISHED if not name.startswith(".")])
def test_holds_the_published_numbers(name: str):
    """Those of a shipped recipe, without the values of a user."""
    assert values_of(composed(name), PUBLISHED[name]) == PUBLISHED[name]
