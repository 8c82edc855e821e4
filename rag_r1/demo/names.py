"""The names and words of the demo world, and their split into training and test.

Every name has two words. The set of all word pairs has a fixed split into `train` (the warm start and
reinforcement learning) and `test`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

FIRST = [a + b for a in "Ma Be Ti Ro Se Do".split() for b in "ra lin vo mi ten sa ric lo".split()]
LAST = [a + b for a in "Tor Lun Ves Hal Gri Ost".split() for b in "val mer ski den ott ham rin gard".split()]
STEM = [a + b for a in "Kar Vel Zan Mor Ila Pes".split() for b in "len da tis bor nek mu fas gol".split()]
TOWN = "Ford Mill Bridge Haven Cross Hill Moor Gate".split()
RIVER = "Water Brook Beck Run Stream Burn Flow Creek".split()
COMPANY = "Works Motors Foundry Bank Press Foods Glass Steel".split()
TRADE = "painter singer doctor writer pilot teacher farmer miner".split()
NAME_WORDS = (*FIRST, *LAST, *STEM, *TOWN, *RIVER, *COMPANY)  # the words of all names
YEARS = [str(year) for year in range(1901, 1931)]


def names(first: Sequence[str], second: Sequence[str], split: str) -> list[str]:
    """All two-word names of a split, `train` or `test`. The splits are disjoint and the same for all seeds;
    one name in six is a test name."""
    pairs = (f"{a} {b}" for a in first for b in second)
    return [pair for pair in pairs if (zlib.crc32(pair.encode()) % 6 == 0) == (split == "test")]
