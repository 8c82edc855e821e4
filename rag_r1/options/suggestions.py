"""Suggests the known name that is most similar to an unknown one: `did you mean ...?`"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known_names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `did you mean NAME?` with the most similar known name; "" if none is similar. `cutoff` is the
    least similarity, from 0 to 1, without the hyphens before flags, which would make all short ones alike."""
    name_of = {known.lstrip("-"): known for known in known_names}
    matches = get_close_matches(name.lstrip("-"), name_of, n=1, cutoff=cutoff)
    return f"did you mean {name_of[matches[0]]}?" if matches else ""
