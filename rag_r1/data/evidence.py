"""Represents a question's gold passages, which are known by id, by title or by text.

Data sets name the passages that contain the answer by their ids in the corpus, or name their pages by title.
Probes (rag_r1/probes/probes.py) show or withhold these passages, and evaluation reports have their recall.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag_r1.data.rows import cell_text
from rag_r1.protocols import Document


@dataclass(frozen=True)
class GoldEvidence:
    """The gold passages of a question, as far as they are known."""

    #: Ids in the corpus.
    ids: frozenset[str] = frozenset()
    #: Titles of the pages, as `title_key` returns them.
    titles: frozenset[str] = frozenset()
    #: The passages themselves.
    passages: tuple[Document, ...] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, Any], passages: Iterable[Document] = ()) -> GoldEvidence:
        """Return the evidence from `supporting_ids` and `supporting_titles` of a row's metadata
        (rag_r1/data/rows.py) and from the passages. Raises nothing: a malformed key counts as absent."""
        documents = tuple(passages)
        titles = {title_key(title) for title in _texts(metadata.get("supporting_titles"))}
        titles |= {title_key(title_of(passage)) for passage in documents}
        return cls(
            frozenset(_texts(metadata.get("supporting_ids"))) | {p.id for p in documents if p.id},
            frozenset(titles - {""}),  # passages without a title do not belong to one page
            documents,
        )

    def holds(self, document: Document) -> bool:
        """Return whether a document is one of the gold passages, or another passage of one of their
        pages."""
        return document.id in self.ids or title_key(title_of(document)) in self.titles

    def recall(self, documents: Sequence[Document]) -> float:
        """Return the share of the gold passages that are among `documents`, by id if ids are known, and
        otherwise by title. At least one of them must be known (`bool(self)`)."""
        if self.ids:
            return len(self.ids & {document.id for document in documents}) / len(self.ids)
        return len(self.titles & {title_key(title_of(document)) for document in documents}) / len(self.titles)

    def names(self) -> dict[str, list[str]]:
        """Return the ids and the titles under the keys that `of` reads; a key without values is left out."""
        names = {"supporting_ids": sorted(self.ids), "supporting_titles": sorted(self.titles)}
        return {name: values for name, values in names.items() if values}

    def __bool__(self) -> bool:
        """Whether a gold passage is known by its id or by the title of its page."""
        return bool(self.ids or self.titles)


def title_of(document: Document) -> str:
    """Return the title of a passage: its first line without the outer quotation marks (FlashRAG's
    convention), or, if there is only one line, the text before three spaces (RAG-R1's tsv)."""
    first, line_break, _ = document.contents.partition("\n")
    first = first if line_break else first.partition("   ")[0]
    return re.sub(r'^"(.*)"$', r"\1", first.strip())


def title_key(title: str) -> str:
    """Return a key that is equal for titles that differ only in Unicode form, case, underscores or space."""
    folded = unicodedata.normalize("NFKC", str(title)).casefold().replace("_", " ")
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def base_title(title: str) -> str:
    """Return the title without a final part in parentheses."""
    return re.sub(r" \([^()]*\)$", "", title)


def _texts(value: Any) -> list[str]:
    """Return the texts and numbers in a list or numpy array as texts, without blank ones and NaN; none for
    anything else."""
    value = value.tolist() if hasattr(value, "tolist") else value
    texts = map(cell_text, value) if isinstance(value, list | tuple) else ()
    return [text for text in texts if text.strip()]
