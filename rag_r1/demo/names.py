"""Defines the names and words of the demo world, and their split into training and test.

Every name consists of two words. All pairs of words are divided between the splits `train`, which the warm
start and reinforcement learning use, and `test`. The division is fixed.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

#: First and last names of persons.
FIRST = [a + b for a in "Ma Be Ti Ro Se Do".split() for b in "ra lin vo mi ten sa ric lo".split()]
LAST = [a + b for a in "Tor Lun Ves Hal Gri Ost".split() for b in "val mer ski den ott ham rin gard".split()]
#: First words of the names of towns, rivers and companies.
STEM = [a + b for a in "Kar Vel Zan Mor Ila Pes".split() for b in "len da tis bor nek mu fas gol".split()]
#: Second words of the names of towns, of rivers and of companies.
TOWN = "Ford Mill Bridge Haven Cross Hill Moor Gate".split()
RIVER = "Water Brook Beck Run Stream Burn Flow Creek".split()
COMPANY = "Works Motors Foundry Bank Press Foods Glass Steel".split()
#: Occupations of persons, which occur only in passages.
TRADE = "painter singer doctor writer pilot teacher farmer miner".split()
#: The words of all names.
NAME_WORDS = (*FIRST, *LAST, *STEM, *TOWN, *RIVER, *COMPANY)
#: The years of birth, as texts.
YEARS = [str(year) for year in range(1901, 1931)]


def names(first: Sequence[str], second: Sequence[str], split: str) -> list[str]:
    """Return all names of a split, `train` or `test`, that consist of a first and a second word.

    The splits are disjoint and the same for all seeds. About one name in six is in `test`.
    """
    pairs = (f"{a} {b}" for a in first for b in second)
    return [pair for pair in pairs if (zlib.crc32(pair.encode()) % 6 == 0) == (split == "test")]
