"""Lists of given items and texts put together from parts, for property tests.

They are drawn as one string, in which a character stands for each item: with a draw for each, Hypothesis
takes many times as long as what is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from hypothesis import strategies as st

#: The characters that stand for the parts begin here, where Hypothesis has no favourites.
_FIRST = 0x100


def choices(items: Sequence[Any], least: int = 0, most: int | None = None) -> st.SearchStrategy[list[Any]]:
    """Lists of at least `least` and at most `most` of these items, the same one any number of times."""
    stand_ins = [chr(_FIRST + number) for number in range(len(items))]
    chosen = st.text(stand_ins, min_size=least, max_size=most)
    return chosen.map(lambda characters: [items[ord(c) - _FIRST] for c in characters])


def joined(pieces: Sequence[str], most: int | None = None) -> st.SearchStrategy[str]:
    """Up to `most` of these pieces."""
    return choices(pieces, most=most).map("".join)


def mixed(pieces: Sequence[str], most: int | None, run: int) -> st.SearchStrategy[str]:
    """Up to `most` parts: two of three are pieces, one is a run of at most `run` characters of any kind."""
    runs = [number % (run + 1) for number in range(max(len(pieces) // 2, run + 1))]
    # Never empty, so that more parts are drawn; a text of one empty run is empty.
    chosen = choices([*pieces, *runs], least=1, most=most)

    @st.composite
    def text(draw) -> str:
        parts = draw(chosen)
        long = sum(part for part in parts if isinstance(part, int))
        rest = iter(draw(st.text(min_size=long, max_size=long)) if long else "")
        return "".join("".join(islice(rest, part)) if isinstance(part, int) else part for part in parts)

    return text()
