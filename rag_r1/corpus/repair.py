"""Writes a repaired corpus: its own passages, followed by the supplied missing ones.

A supplied passage is taken, once, if its id or its title is missing in the corpus. It keeps its id, unless it
has none or another passage has it: then it becomes `supplied-N`, with an N that the corpus does not have.
Corpus and supply are streamed, each row is written at once, and the file gets its name when it is whole: a
repair that was killed is made again from its beginning.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from rag_r1.corpus.reader import BadPassageError, Corpus, CorpusError, Passage
from rag_r1.corpus.title_index import STRONG, key_of, level_of
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.io.atomic_files import atomic_file

REPAIRED = "repaired_corpus.jsonl"
_OWN = re.compile(r"supplied-(\d{1,18})")


@dataclass
class RepairResult:
    """What was written: passages of the corpus, and supplied ones; which ids and titles are still missing."""

    path: Path
    passages: int = 0
    supplied: int = 0
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

    Raises CorpusError if rows cannot be used and are not to be left out; `out` is then as it was before.
    """
    done = RepairResult(out, ids_left=set(ids), titles_left=set(titles))
    offered = {row.id for row in _passages(supply, done.bad, progress, "reading supply") if row.id}
    if done.bad.count and not skip_bad_rows:
        raise CorpusError(f"no repaired corpus was written, because of {done.bad.refusal()}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(out) as part:
        _write_all(part, corpus, supply, done, offered, skip_bad_rows, progress)
    return done


def _write_all(
    part: Path,
    corpus: Corpus,
    supply: Corpus,
    done: RepairResult,
    offered: Collection[str],
    skip_bad_rows: bool,
    progress: bool,
) -> None:
    """The corpus, then the supplied passages. `offered`: the ids of the supply."""
    taken: set[str] = set()
    last = 0
    bad = BadRows()
    with part.open("w", encoding="utf-8") as file:
        for row in _passages(corpus, bad, progress, "copying corpus"):
            _write(file, row)
            done.passages += 1
            if row.id in offered:
                taken.add(row.id)
            if row.id and row.id.startswith("supplied-") and (own := _OWN.fullmatch(row.id)):
                last = max(last, int(own[1]))
        if bad.count and not skip_bad_rows:
            raise CorpusError(f"no repaired corpus was written, because of {bad.refusal()}")
        _append(file, supply, done, taken, last, progress)
        file.flush()
        os.fsync(file.fileno())


def _append(
    file: TextIO, supply: Corpus, done: RepairResult, taken: set[str], last: int, progress: bool
) -> None:
    """Write the supplied passages that are missing. `taken`: ids that are in the corpus."""
    wanted = _MissingEvidence(done.ids_left, done.titles_left)
    seen: set[bytes] = set()
    for row in _passages(supply, BadRows(), progress, "adding passages"):
        if not wanted.has(row):
            continue
        digest = hashlib.sha256(f"{row.id}\n{row.contents}".encode()).digest()[:12]
        if digest in seen:
            continue
        seen.add(digest)
        own_id = row.id
        if own_id is None or own_id in taken:
            last += 1
            own_id = f"supplied-{last}"
            done.renamed += 1
        elif own := _OWN.fullmatch(own_id):
            last = max(last, int(own[1]))
        taken.add(own_id)
        _write(file, Passage(own_id, row.contents, row.url))
        done.supplied += 1
    done.ids_left -= wanted.found
    done.titles_left -= wanted.found_titles


class _MissingEvidence:
    """Which of the missing ids and titles a passage has."""

    def __init__(self, ids: Collection[str], titles: Sequence[str] | set[str]):
        self.ids = frozenset(ids)
        self.titles: dict[str, list[str]] = {}
        for title in titles:
            self.titles.setdefault(key_of(title), []).append(title)
        self.found: set[str] = set()
        self.found_titles: set[str] = set()

    def has(self, row: Passage) -> bool:
        by_id = row.id in self.ids
        if by_id and row.id is not None:
            self.found.add(row.id)
        title = row.title
        named = self.titles.get(key_of(title), ()) if title else ()
        matching = [name for name in named if title and level_of(name, title) in STRONG]
        self.found_titles.update(matching)
        return by_id or bool(matching)


def _passages(corpus: Corpus, bad: BadRows, progress: bool, doing: str) -> Iterator[Passage]:
    for row, place in corpus.rows(progress=progress, doing=doing):
        if isinstance(row, BadPassageError):
            bad.add(corpus.where(place), row)
        else:
            yield row


def _write(file: TextIO, row: Passage) -> None:
    file.write(json.dumps(row.row(), ensure_ascii=False) + "\n")
