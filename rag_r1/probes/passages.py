"""Reads the passages file of the probes `random` and `gold`, and chooses the passages of a question.

`rag-r1 probe-passages` and `rag-r1 eval --card --corpus` read a corpus once and write the passages that the
probes need (rag_r1/evaluation/probes/collect.py) as JSON:

    done      whether the corpus was read to its end
    by_id     passages that questions name by id, each as [id, contents]
    by_title  passages of the pages that questions name, by `title_key` of the page's title
    drawn     a random sample of the corpus, each passage as [number, id, contents]; the sample is ordered by
              the numbers, which are negative hashes, the largest first

The file has further keys, with which an interrupted scan of the corpus is continued. Search cards and the
validations of a training (the option `rag_r1.probe_passages`) both choose a question's passages with this
module, so they show the same ones.

The file may come from another person: it is plain JSON, and its shape is checked before anything is used. Its
passages are neutralised where they enter a context, as the results of a search are
(rag_r1/protocols/neutraliser.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rag_r1.data.evidence import GoldEvidence, title_key, title_of
from rag_r1.io.bounded_json import json_file_bytes
from rag_r1.io.errors import DataError, TooLargeError, reason_of
from rag_r1.protocols import Document
from rag_r1.rewards.answer_metrics import cover_exact_match

#: The remedy in messages about a missing or wrong file of passages.
HOW_TO_MAKE = "make it with `rag-r1 probe-passages --questions VALIDATION --corpus CORPUS --out FILE`"
#: The remedy in messages about a file with too many passages.
FEWER_QUESTIONS = f"{HOW_TO_MAKE}, of fewer questions"
#: Limits of a file, in bytes and JSON values. A passage of 100 words has about 600 bytes, and three values.
MAX_BYTES, MAX_VALUES = 256 << 20, 8_000_000

#: Number, id and contents of a random passage.
Drawn = tuple[int, str, str]


@dataclass(frozen=True)
class Passages:
    """The passages that probes may show."""

    by_id: dict[str, Document] = field(default_factory=dict)
    #: The passages of each page, by `title_key` of its title.
    by_title: dict[str, list[Document]] = field(default_factory=dict)
    #: A random sample of the corpus.
    random: list[Document] = field(default_factory=list)

    def gold_passages(self, evidence: GoldEvidence, golds: Sequence[str]) -> tuple[Document, ...]:
        """Return the gold passages of a question with the accepted answers `golds`.

        If all passages that the evidence names by id are known, these are returned, sorted by id. Otherwise
        the passages of its pages are returned, or nothing if a page is missing. Since a page has many
        passages, those that contain an answer come first within their page, and the first passage of every
        page comes before the second one of any.
        """
        if evidence.ids and evidence.ids <= self.by_id.keys():
            return tuple(self.by_id[name] for name in sorted(evidence.ids))
        pages = [self.by_title.get(title, []) for title in sorted(evidence.titles)]
        if not pages or not all(pages):
            return ()
        if answers := list(golds):
            pages = [sorted(page, key=lambda p: -cover_exact_match(p.contents, answers)) for page in pages]
        rounds = (page[i] for i in range(max(map(len, pages))) for page in pages if i < len(page))
        return tuple({passage.id: passage for passage in rounds}.values())

    def evidence(self, metadata: Mapping[str, Any], golds: Sequence[str], topk: int) -> GoldEvidence:
        """Return the gold ids and titles in a row's metadata (rag_r1/data/rows.py), with the passages that
        the probe `gold` shows. These are at least `topk`, if there are so many, and one per id and page; none
        if a gold passage is unknown."""
        evidence = GoldEvidence.of(metadata)
        gold = self.gold_passages(evidence, golds)
        return GoldEvidence.of(metadata, gold[: max(topk, len(evidence.ids), len(evidence.titles))])

    def distractors(self, gold: GoldEvidence) -> Sequence[Document]:
        """Return the random passages that are not gold passages of a question and not from their pages."""
        by_id, by_title = self._positions
        excluded = {position for name in gold.ids for position in by_id.get(name, ())}
        excluded |= {position for title in gold.titles for position in by_title.get(title, ())}
        return [passage for i, passage in enumerate(self.random) if i not in excluded]

    @cached_property
    def _positions(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """The positions in `random` of the passages with an id, and of the passages of a page."""
        by_id: dict[str, list[int]] = {}
        by_title: dict[str, list[int]] = {}
        for position, passage in enumerate(self.random):
            by_id.setdefault(passage.id, []).append(position)
            by_title.setdefault(title_key(title_of(passage)), []).append(position)
        return by_id, by_title


class PassagesFile(BaseModel):
    """The keys of the file that are read here; other keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    done: bool
    by_id: list[tuple[str, str]]
    by_title: dict[str, list[tuple[str, str]]]
    drawn: list[Drawn]

    def passages(self) -> Passages:
        """Return the passages in the file."""
        return Passages(
            {name: Document(name, contents) for name, contents in self.by_id},
            {key: [Document(*passage) for passage in page] for key, page in self.by_title.items()},
            random_passages(self.drawn),
        )


def random_passages(sample: Iterable[Drawn]) -> list[Document]:
    """Return the random passages in the order of their numbers, the largest first."""
    return [Document(name, contents) for _, name, contents in sorted(sample, reverse=True)]


def read_passages(path: str | Path) -> Passages:
    """Return the passages of a file. Raises DataError if the file is missing or has another shape, or if its
    scan of the corpus is unfinished."""
    try:
        data = json_file_bytes(Path(os.path.expanduser(path)), MAX_BYTES, MAX_VALUES)
        file = PassagesFile.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        location = "".join(f"{key}: " for key in first["loc"][:1])  # deeper parts may be titles from the file
        raise DataError(
            f"{path} is not a file of passages ({location}{first['msg']}): {HOW_TO_MAKE}"
        ) from error
    except TooLargeError as error:
        raise DataError(
            f"{path} is not a file of passages, or has too many ({error}): {FEWER_QUESTIONS}"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({reason_of(error)}): {HOW_TO_MAKE}") from error
    if not file.done:
        raise DataError(
            f"{path} holds a scan of the corpus that was interrupted or refused: run the command that wrote "
            "it once more"
        )
    return file.passages()
