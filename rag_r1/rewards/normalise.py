"""Normalisers of answers, for rewards and for evaluation.

    squad         SQuAD's normaliser, the default, which Search-R1 and RAG-R1 use too. It converts to lower
                  case, removes ASCII punctuation and the articles a / an / the, and folds white space.
    r1_searcher   the normaliser of R1-Searcher's reward servers and evaluation (`metric_calc_rule.py`), on
                  which its published figures are based. Punctuation, including ‘ ’ ´ `, becomes spaces, so
                  that "Jean-Luc" is two words, and the answers `True` and `False` become yes and no.

Of some golds nothing is left after normalisation ("The The", "A", "?"). These and their predictions are
compared after lower-casing and folding white space only. So such a gold can still be answered, but only by
itself. An empty prediction equals nothing and covers nothing.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from typing import Any, Literal

from rag_r1.data.rows import as_golds

#: The names of the normalisers.
NormaliserName = Literal["squad", "r1_searcher"]

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PUNCTUATION_BLANK = dict.fromkeys(map(ord, string.punctuation + "‘’´`"), " ")
_TRUTH = {"True": "yes", "False": "no"}
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalise(text: str) -> str:
    """Return a text as SQuAD's metrics compare it: `"The  U.S.A.!"` becomes `"usa"`. It can be empty."""
    return fold(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)))


def normalise_r1_searcher(text: str) -> str:
    """Return a text as R1-Searcher's metrics compare it: `"AC/DC"` becomes `"ac dc"`, and `"True"` becomes
    `"yes"`. It can be empty."""
    text = _TRUTH.get(text, text)
    return fold(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION_BLANK)))


NORMALISERS: dict[str, Callable[[str], str]] = {"squad": normalise, "r1_searcher": normalise_r1_searcher}


def fold(text: str) -> str:
    """Return a text in lower case with white space folded."""
    return " ".join(text.lower().split())


def comparable(prediction: str | None, golds: Any, normaliser: NormaliserName) -> Iterator[tuple[str, str]]:
    """Yield (prediction, gold) for every gold, in the form in which they are compared; neither is ever empty.

    `golds` is anything that `as_golds` reads. Raises ValueError, which lists the normalisers, for an unknown
    one.
    """
    if normaliser not in NORMALISERS:
        raise ValueError(f"unknown normaliser {normaliser!r}: use one of {', '.join(NORMALISERS)}")
    normalise_text = NORMALISERS[normaliser]
    for gold in as_golds(golds) if prediction else ():
        convert = normalise_text if normalise_text(gold) else fold
        if answer := convert(prediction):
            yield answer, convert(gold)
