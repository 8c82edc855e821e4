"""Writes a repaired corpus: all passages of a corpus, followed by the supplied passages that it lacks.

A supplied passage is added, once, if its id or its title is among the missing evidence. It keeps its id if it
has one that no other passage has; otherwise its id becomes `supplied-N`, with an unused number N. Corpus and
supply are streamed: of the corpus nothing is kept in memory, of the supply its ids. The file appears under
its name only when it is complete, so a repair that was killed begins again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from rag_r1.corpus.reader import Corpus, Passage
from rag_r1.corpus.title_index import STRONG, key_of, level_of
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.io.atomic_files import write_json_lines

#: The name of the file with the repaired corpus.
REPAIRED = "repaired_corpus.jsonl"
_SUPPLIED = re.compile(r"supplied-(\d{1,18})")


@dataclass
class RepairResult:
    """The written file, the numbers of its passages, and the evidence that is still missing."""

    path: Path
    #: Number of passages from the corpus.
    passages: int = 0
    #: Number of passages from the supply.
    supplied: int = 0
    #: Number of supplied passages with a new id.
    renamed: int = 0
    #: Ids that are still missing.
    ids_left: set[str] = field(default_factory=set)
    #: Titles that are still missing.
    titles_left: set[str] = field(default_factory=set)
    #: Rows of the supply that were left out.
    bad: BadRows = field(default_factory=BadRows)


def repair(
    corpus: Corpus,
    supply: Corpus,
    out: Path,
    *,
    ids: Collection[str] = (),
    titles: Collection[str] = (),
    skip_bad_rows: bool = False,
    progress: bool = True,
) -> RepairResult:
    """Write the repaired corpus to `out`, as JSON lines with {"id", "contents"} and, where a passage has one,
    "url".

    `ids` and `titles` are the evidence that the corpus lacks. Raises DataError if rows cannot be used, unless
    `skip_bad_rows` says to leave them out; `out` is then unchanged.
    """
    result = RepairResult(out, ids_left=set(ids), titles_left=set(titles))
    supply_ids = {row.id for row in _passages(supply, result.bad, progress, "reading supply") if row.id}
    result.bad.refuse(skip_bad_rows, "no repaired corpus was written")
    out.parent.mkdir(parents=True, exist_ok=True)
    passages = _repaired_passages(corpus, supply, result, supply_ids, skip_bad_rows, progress)
    write_json_lines(out, (passage.row() for passage in passages), durable=True)
    return result


def _repaired_passages(
    corpus: Corpus,
    supply: Corpus,
    result: RepairResult,
    supply_ids: Collection[str],
    skip_bad_rows: bool,
    progress: bool,
) -> Iterator[Passage]:
    """Yield the passages of the corpus, then the supplied passages that it lacks, and update `result`. Raises
    DataError for bad rows in the corpus, unless `skip_bad_rows` says to leave them out."""
    used_ids: set[str] = set()  # only those that a supplied passage might have as well
    last_number = 0  # the largest N of any `supplied-N`
    bad = BadRows()
    for row in _passages(corpus, bad, progress, "copying corpus"):
        yield row
        result.passages += 1
        if row.id in supply_ids:
            used_ids.add(row.id)
        last_number = max(last_number, _supplied_number(row.id))
    bad.refuse(skip_bad_rows, "no repaired corpus was written")
    missing = _MissingEvidence(result.ids_left, result.titles_left)
    digests: set[bytes] = set()
    for row in _passages(supply, BadRows(), progress, "adding passages"):
        digest = hashlib.sha256(f"{row.id}\n{row.contents}".encode()).digest()[:12]
        if not missing.supplied_by(row) or digest in digests:
            continue
        digests.add(digest)
        if row.id is None or row.id in used_ids:
            last_number += 1
            row = replace(row, id=f"supplied-{last_number}")
            result.renamed += 1
        last_number = max(last_number, _supplied_number(row.id))
        used_ids.add(row.id)
        yield row
        result.supplied += 1
    result.ids_left -= missing.supplied_ids
    result.titles_left -= missing.supplied_titles


def _supplied_number(passage_id: str | None) -> int:
    """Return N if the id is `supplied-N`, and otherwise 0."""
    match = _SUPPLIED.fullmatch(passage_id or "")
    return int(match[1]) if match else 0


class _MissingEvidence:
    """The missing ids and titles, and those of them that the supplied passages have."""

    def __init__(self, ids: Collection[str], titles: Collection[str]):
        self.ids = frozenset(ids)
        #: Maps the key of each missing title (title_index.py) to the titles with this key.
        self.titles: dict[str, list[str]] = {}
        for title in titles:
            self.titles.setdefault(key_of(title), []).append(title)
        self.supplied_ids: set[str] = set()
        self.supplied_titles: set[str] = set()

    def supplied_by(self, row: Passage) -> bool:
        """Record which missing ids and titles a passage has. Returns whether it has any."""
        ids = self.ids & {row.id}
        title = row.title
        similar_titles = self.titles.get(key_of(title), ()) if title else ()
        titles = [name for name in similar_titles if title and level_of(name, title) in STRONG]
        self.supplied_ids |= ids
        self.supplied_titles.update(titles)
        return bool(ids or titles)


def _passages(corpus: Corpus, bad: BadRows, progress: bool, doing: str) -> Iterator[Passage]:
    """Yield the passages of a corpus, and add all other rows to `bad`."""
    for row, position in corpus.rows(progress=progress, doing=doing):
        if isinstance(row, ValueError):
            bad.add(corpus.location(position), row)
        else:
            yield row
