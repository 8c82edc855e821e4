"""Detects targets that copy the text of a document.

A policy that is trained to write document text learns to invent documents. By provenance no target is a
document (`rag_r1/data/sft_rows.py`), but a teacher may have copied one into its turn. So a target quotes a
document if they have a run of `RUN` words in common. A document of fewer words counts as quoted if all of
it stands in the target, unless it is shorter than `MIN_WORDS` words: a name or a date that an answer has
to repeat.

Words are compared without letter case and punctuation. Each character of Chinese, Japanese and Korean
counts as a word, because these scripts do not separate words by spaces. The whole contents of a document
and its text without the title line are both compared. The time is linear in the number of words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rag_r1.protocols import Document

#: Words in a row that make a quotation.
RUN = 12
#: A whole document of fewer words is not a quotation.
MIN_WORDS = 6
#: What counts as a quotation, for reports.
QUOTATION = f"a run of {RUN} words of a shown document, or a whole one of {MIN_WORDS} to {RUN} words"

_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")


def words(text: str) -> list[str]:
    """The words of a text as they are compared."""
    return _WORD.findall(text.casefold())


def find_quotation(target: str, documents: Iterable[Document], run: int = RUN) -> str | None:
    """The first run of words that `target` has in common with a document, or None if it quotes none."""
    target_words = words(target)
    runs: dict[int, set[tuple[str, ...]]] = {}
    for document in documents:
        for text in dict.fromkeys((document.contents, document.text)):
            document_words = words(text)
            length = min(run, len(document_words))
            if length < min(run, MIN_WORDS) or length > len(target_words):
                continue
            if length not in runs:
                runs[length] = set(_runs(target_words, length))
            quotation = next((part for part in _runs(document_words, length) if part in runs[length]), None)
            if quotation:
                return " ".join(quotation)
    return None


def _runs(text_words: list[str], length: int) -> Iterable[tuple[str, ...]]:
    return (tuple(text_words[i : i + length]) for i in range(len(text_words) - length + 1))
