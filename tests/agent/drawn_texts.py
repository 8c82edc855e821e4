"""Texts put together from parts, for property tests.

The parts of a text are drawn as one string, in which a character stands for each of them: with a draw for
each part, Hypothesis takes many times as long as what is tested.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

#: The characters that stand for the parts begin here, where Hypothesis has no favourites.
_FIRST = 0x100


def joined(pieces: Sequence[str], most: int | None = None) -> st.SearchStrategy[str]:
    """Up to `most` of these pieces."""
    stand_ins = [chr(_FIRST + number) for number in range(len(pieces))]
    chosen = st.text(stand_ins, max_size=most)
    return chosen.map(lambda parts: "".join(pieces[ord(part) - _FIRST] for part in parts))


def mixed(pieces: Sequence[str], most: int | None, run: int) -> st.SearchStrategy[str]:
    """Up to `most` parts: two of three are pieces, one is a run of at most `run` characters of any kind."""
    runs = max(len(pieces) // 2, run + 1)
    stand_ins = [chr(_FIRST + number) for number in range(len(pieces) + runs)]
    # Never empty, so that more parts are drawn; a text of one empty run is empty.
    chosen = st.text(stand_ins, min_size=1, max_size=most)
    lengths = {chr(_FIRST + len(pieces) + number): number % (run + 1) for number in range(runs)}

    @st.composite
    def text(draw) -> str:
        parts = draw(chosen)
        long = sum(lengths.get(part, 0) for part in parts)
        rest = iter(draw(st.text(min_size=long, max_size=long)) if long else "")
        return "".join(
            "".join(next(rest) for _ in range(lengths[part]))
            if part in lengths
            else pieces[ord(part) - _FIRST]
            for part in parts
        )

    return text()
