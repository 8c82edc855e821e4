"""How many examples a property test tries if each takes long."""

from __future__ import annotations

import os

from hypothesis import settings


def at_most(count: int) -> settings:
    """As many examples as the profile says, but no more than `count`, except in `nightly`."""
    examples = settings().max_examples
    is_nightly = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
    return settings(max_examples=examples if is_nightly else min(examples, count))
