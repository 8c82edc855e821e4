"""Detects targets that copy the text of a document.

A policy that is trained to write the text of documents learns to invent documents. Targets are never
documents themselves (`rag_r1/data/sft_rows.py`), but a teacher may have copied one into its turn. A target
therefore counts as a quotation if it has a run of `RUN` words in common with a document. A shorter document
counts as quoted if the target contains all of it, unless it has fewer than `MIN_WORDS` words: then it may be
a name or a date that the answer has to repeat.

Words are compared without letter case and punctuation. Each character of Chinese, Japanese and Korean counts
as a word, because these scripts do not separate words by spaces. A document is compared with and without its
title line. The time is linear in the number of words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rag_r1.protocols import Document

#: Number of consecutive words that make a quotation.
RUN = 12
#: A document with fewer words cannot be quoted.
MIN_WORDS = 6
#: Defines a quotation in reports.
QUOTATION = f"a run of {RUN} words of a shown document, or a whole one of {MIN_WORDS} to {RUN} words"

_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")


def words(text: str) -> list[str]:
    """Return the words of a text in the form in which they are compared."""
    return _WORD.findall(text.casefold())


def find_quotation(target: str, documents: Iterable[Document]) -> str | None:
    """Return the words of the first quotation of a document in `target`; None if there is none."""
    target_words = words(target)
    target_runs: dict[int, set[tuple[str, ...]]] = {}  # length -> all runs of this length
    for document in documents:
        for text in dict.fromkeys((document.contents, document.text)):
            document_words = words(text)
            length = min(RUN, len(document_words))
            if length < MIN_WORDS or length > len(target_words):
                continue
            if length not in target_runs:
                target_runs[length] = set(_runs(target_words, length))
            for candidate in _runs(document_words, length):
                if candidate in target_runs[length]:
                    return " ".join(candidate)
    return None


def _runs(text_words: list[str], length: int) -> Iterator[tuple[str, ...]]:
    """Return all runs of consecutive words with this length."""
    return (tuple(text_words[i : i + length]) for i in range(len(text_words) - length + 1))
