"""Writes a repaired corpus: its own passages, followed by the supplied missing ones.

A supplied passage is taken, once, if its id or its title is missing in the corpus. It keeps its id, unless it
has none or another passage has it: then it becomes `supplied-N`, with an N that the corpus does not have.
Corpus and supply are streamed, each row is written at once, and the file gets its name when it is whole: a
repair that was killed is made again from its beginning.
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

REPAIRED = "repaired_corpus.jsonl"
_SUPPLIED = re.compile(r"supplied-(\d{1,18})")


@dataclass
class RepairResult:
    """The written file, its passages from the corpus and from the supply, and the evidence that is still
    missing."""

    path: Path
    passages: int = 0
    supplied: int = 0
    #: Supplied passages with a new id.
    renamed: int = 0
    ids_left: set[str] = field(default_factory=set)
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
    """Write `out` (JSON lines, {"id", "contents"}). `ids` and `titles`: what is missing in the corpus.

    Raises DataError if rows cannot be used and are not to be left out; `out` is then as it was before.
    """
    result = RepairResult(out, ids_left=set(ids), titles_left=set(titles))
    offered = {row.id for row in _passages(supply, result.bad, progress, "reading supply") if row.id}
    result.bad.refuse(skip_bad_rows, "no repaired corpus was written")
    out.parent.mkdir(parents=True, exist_ok=True)
    passages = _repaired_passages(corpus, supply, result, offered, skip_bad_rows, progress)
    write_json_lines(out, (passage.row() for passage in passages), durable=True)
    return result


def _repaired_passages(
    corpus: Corpus,
    supply: Corpus,
    counts: RepairResult,
    offered: Collection[str],
    skip_bad_rows: bool,
    progress: bool,
) -> Iterator[Passage]:
    """The corpus, then the supplied passages that are missing in it, counted in `counts`. `offered`: the
    ids of the supply. Raises DataError for bad rows in the corpus."""
    used_ids: set[str] = set()
    last = 0
    bad = BadRows()
    for row in _passages(corpus, bad, progress, "copying corpus"):
        yield row
        counts.passages += 1
        if row.id in offered:
            used_ids.add(row.id)
        last = max(last, _supplied_number(row.id))
    bad.refuse(skip_bad_rows, "no repaired corpus was written")
    missing = _MissingEvidence(counts.ids_left, counts.titles_left)
    digests: set[bytes] = set()
    for row in _passages(supply, BadRows(), progress, "adding passages"):
        digest = hashlib.sha256(f"{row.id}\n{row.contents}".encode()).digest()[:12]
        if not missing.supplied_by(row) or digest in digests:
            continue
        digests.add(digest)
        if row.id is None or row.id in used_ids:
            last += 1
            row = replace(row, id=f"supplied-{last}")
            counts.renamed += 1
        last = max(last, _supplied_number(row.id))
        used_ids.add(row.id)
        yield row
        counts.supplied += 1
    counts.ids_left -= missing.present_ids
    counts.titles_left -= missing.present_titles


def _supplied_number(passage_id: str | None) -> int:
    """N of `supplied-N`; 0 for any other id."""
    match = _SUPPLIED.fullmatch(passage_id or "")
    return int(match[1]) if match else 0


class _MissingEvidence:
    """The missing ids and titles, and which of them the supplied passages have."""

    def __init__(self, ids: Collection[str], titles: Collection[str]):
        self.ids = frozenset(ids)
        self.titles: dict[str, list[str]] = {}
        for title in titles:
            self.titles.setdefault(key_of(title), []).append(title)
        self.present_ids: set[str] = set()
        self.present_titles: set[str] = set()

    def supplied_by(self, row: Passage) -> bool:
        """Note which missing ids and titles a passage has; returns whether it has any."""
        ids, title = self.ids & {row.id}, row.title
        names = self.titles.get(key_of(title), ()) if title else ()
        matches = [name for name in names if title and level_of(name, title) in STRONG]
        self.present_ids |= ids
        self.present_titles.update(matches)
        return bool(ids or matches)


def _passages(corpus: Corpus, bad: BadRows, progress: bool, doing: str) -> Iterator[Passage]:
    """The passages of a corpus; other rows are added to `bad`."""
    for row, position in corpus.rows(progress=progress, doing=doing):
        if isinstance(row, ValueError):
            bad.add(corpus.location(position), row)
        else:
            yield row
