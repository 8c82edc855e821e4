"""A question's gold passages, by id, title or text.

Data sets name the passages that hold the answer by their ids in the corpus, or the pages by title. Probes
(rag_r1/probes/probes.py) show or withhold them, and a report has their recall.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag_r1.protocols import Document


@dataclass(frozen=True)
class GoldEvidence:
    """A question's gold passages: their ids, their titles, or the passages themselves."""

    ids: frozenset[str] = frozenset()
    titles: frozenset[str] = frozenset()
    passages: tuple[Document, ...] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, Any], passages: Iterable[Document] = ()) -> GoldEvidence:
        """The evidence that `supporting_ids` and `supporting_titles` of a row name (rag_r1/data/rows.py), and
        the passages. Raises nothing: a key of another shape counts as absent."""
        documents = tuple(passages)
        titles = {title_key(title) for title in _texts(metadata.get("supporting_titles"))}
        titles |= {title_key(title_of(passage)) for passage in documents}
        return cls(
            frozenset(_texts(metadata.get("supporting_ids"))) | {p.id for p in documents if p.id},
            frozenset(titles - {""}),  # passages without a title are not all of one page
            documents,
        )

    def holds(self, document: Document) -> bool:
        """Whether this is one of the gold passages, or another passage of their pages."""
        return document.id in self.ids or title_key(title_of(document)) in self.titles

    def recall(self, documents: Sequence[Document]) -> float:
        """The share of the gold passages that are among `documents`: of the ids if they are known, else of
        the titles. There must be some (`bool`)."""
        if self.ids:
            return len(self.ids & {document.id for document in documents}) / len(self.ids)
        return len(self.titles & {title_key(title_of(document)) for document in documents}) / len(self.titles)

    def names(self) -> dict[str, list[str]]:
        """The ids and the titles under the keys that `of` reads; a key without any is left out."""
        names = {"supporting_ids": sorted(self.ids), "supporting_titles": sorted(self.titles)}
        return {name: values for name, values in names.items() if values}

    def __bool__(self) -> bool:
        """Whether any gold passage is known."""
        return bool(self.ids or self.titles)


def title_of(document: Document) -> str:
    """The title of a passage: its first line without the outer quotation marks (FlashRAG's convention); in a
    passage of one line, what stands before three blanks (RAG-R1's tsv)."""
    first, line_break, _ = document.contents.partition("\n")
    first = first if line_break else first.partition("   ")[0]
    return re.sub(r'^"(.*)"$', r"\1", first.strip())


def title_key(title: str) -> str:
    """A key that is the same for titles which differ in Unicode form, case, underscores or white space."""
    folded = unicodedata.normalize("NFKC", str(title)).casefold().replace("_", " ")
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def base_title(title: str) -> str:
    """The title without the words in parentheses at its end."""
    return re.sub(r" \([^()]*\)$", "", title)


def _texts(value: Any) -> list[str]:
    """The texts of a list, or of a numpy array; none for anything else."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [str(item) for item in value if str(item).strip()] if isinstance(value, list | tuple) else []
