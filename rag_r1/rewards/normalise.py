"""Answer normalisers, for rewards and for evaluation.

`squad`, the default, is SQuAD's, as Search-R1 and RAG-R1 use it: lower case, ASCII punctuation removed, the
articles a / an / the removed, white space folded. `r1_searcher` is that of R1-Searcher's reward servers and
of its evaluation (`metric_calc_rule.py`), in which its figures are published: punctuation, also ‘ ’ ´ `,
becomes spaces, so that "Jean-Luc" is two words, and the answers `True` and `False` become yes and no.

Some golds have nothing left after normalisation ("The The", "A", "?"). They and their predictions are
compared after lower-casing and folding white space only, so that such a gold can still be answered, and only
by itself. An empty prediction equals nothing and covers nothing.
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
    """Returns `text` in the form of SQuAD's metrics: `"The  U.S.A.!"` becomes `"usa"`. It can be empty."""
    return fold(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)))


def normalise_r1_searcher(text: str) -> str:
    """Returns `text` in the form of R1-Searcher's metrics: `"AC/DC"` becomes `"ac dc"`, `"True"` becomes
    `"yes"`. It can be empty."""
    text = _TRUTH.get(text, text)
    return fold(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION_BLANK)))


NORMALISERS: dict[str, Callable[[str], str]] = {"squad": normalise, "r1_searcher": normalise_r1_searcher}


def fold(text: str) -> str:
    """Returns `text` in lower case with white space folded."""
    return " ".join(text.lower().split())


def comparable(prediction: str | None, golds: Any, normaliser: str = "squad") -> Iterator[tuple[str, str]]:
    """Yields (prediction, gold) for every gold, in the form in which they are compared; neither is ever
    empty.

    Raises ValueError, which lists the normalisers, for an unknown one."""
    if normaliser not in NORMALISERS:
        raise ValueError(f"unknown normaliser {normaliser!r}: use one of {', '.join(NORMALISERS)}")
    normalise_text = NORMALISERS[normaliser]
    for gold in as_golds(golds) if prediction else ():
        convert = normalise_text if normalise_text(gold) else fold
        if answer := convert(prediction):
            yield answer, convert(gold)
