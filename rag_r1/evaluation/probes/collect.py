"""Collects the passages that probes need: gold passages and random ones.

The corpus is read once, whatever its size: in memory are the passages that are kept and the current row. A
gold passage is found by its id, or by the title of its page; of a page at most `MAX_PASSAGES_PER_PAGE`
passages are kept. The random ones are a sample without replacement: those with the smallest hashes of seed,
id and position, so they depend neither on the order of reading nor on what else is collected. The results are
written to a file (rag_r1/probes/passages.py) every `save_interval` rows, with the position that was reached,
so a scan that was killed goes on from there. It ends with an error before the file gets too large to be read.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.corpus.reader import Corpus, CorpusPosition
from rag_r1.corpus.seen_ids import SeenIds, refusal
from rag_r1.data.evidence import GoldEvidence, title_key, title_of
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.io.errors import DataError, TooLargeError
from rag_r1.probes.passages import (
    FEWER_QUESTIONS,
    MAX_BYTES,
    MAX_VALUES,
    Drawn,
    Passages,
    PassagesFile,
    random_passages,
)
from rag_r1.protocols import Document
from rag_r1.runs.state_file import StateFile

#: Most passages that are kept of one page.
MAX_PASSAGES_PER_PAGE = 50
#: Random passages of the corpus, from which the probe `random` draws.
RANDOM_SAMPLE_SIZE = 2000
#: Rows of the corpus between two writes of the file.
SAVE_INTERVAL = 200_000
#: Changes with what a scan of the same corpus collects: a file of an earlier version is not continued.
_VERSION = 1


class _ScanState(PassagesFile):
    """The content of the file, with what a scan needs to go on. `place`: the position that it has reached."""

    place: tuple[int, int, int]
    bad: tuple[int, list[str]]


@dataclass
class _PassageScan:
    """A scan under way: what it looks for (`ids`, `titles`, and `sample_size` random passages by `seed`),
    what it has collected, and the `position` that it has reached. `drawn` is a heap of (negative hash, id,
    contents), so the largest hash leaves first."""

    ids: frozenset[str]
    titles: frozenset[str]
    sample_size: int
    seed: int
    by_id: dict[str, Document] = field(default_factory=dict)
    by_title: dict[str, list[Document]] = field(default_factory=dict)
    drawn: list[Drawn] = field(default_factory=list)
    bad: BadRows = field(default_factory=BadRows)
    position: CorpusPosition = CorpusPosition()
    done: bool = False

    def fingerprint(self, corpus: Corpus) -> str:
        """A hash of the corpus's files and of all that is looked for in them."""
        target = [_VERSION, corpus.fingerprint(), sorted(self.ids), sorted(self.titles)]
        target += [self.sample_size, self.seed, MAX_PASSAGES_PER_PAGE]
        return hashlib.sha256(json.dumps(target).encode()).hexdigest()

    def add(self, document: Document) -> None:
        """Keep a passage of the corpus, if it is one that is looked for or belongs to the sample so far."""
        if document.id in self.ids:
            self.by_id.setdefault(document.id, document)
        if self.titles and (key := title_key(title_of(document))) in self.titles:
            page = self.by_title.setdefault(key, [])
            if len(page) < MAX_PASSAGES_PER_PAGE:
                page.append(document)
        if self.sample_size:
            self._sample(document)

    def _sample(self, document: Document) -> None:
        """Put a passage into the sample, in the place of the one with the largest hash if that is larger."""
        text = f"{self.seed}\n{document.id}\n{_legacy_position_text(self.position)}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        entry = (-int.from_bytes(digest[:8], "big"), *_pair(document))
        if len(self.drawn) < self.sample_size:
            heapq.heappush(self.drawn, entry)
        elif entry > self.drawn[0]:
            heapq.heapreplace(self.drawn, entry)

    def state(self) -> dict[str, Any]:
        """Returns the state as JSON values, for `restore`."""
        return {
            "place": list(self.position),
            "done": self.done,
            "by_id": [_pair(document) for document in self.by_id.values()],
            "by_title": {key: [*map(_pair, page)] for key, page in self.by_title.items()},
            "drawn": sorted(self.drawn),
            "bad": [self.bad.count, self.bad.first],
        }

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take over a state that `state` has returned. Raises ValueError for anything else."""
        state = _ScanState.model_validate(content, strict=False)
        passages = state.passages()
        self.by_id, self.by_title = passages.by_id, passages.by_title
        self.drawn = list(state.drawn)
        heapq.heapify(self.drawn)
        self.bad = BadRows(*state.bad)
        self.position = CorpusPosition(*state.place)
        self.done = state.done


def find_passages(
    corpus: Corpus,
    evidence: Iterable[GoldEvidence],
    out: Path,
    *,
    sample_size: int = 0,
    seed: int = 0,
    skip_bad_rows: bool = False,
    save_interval: int = SAVE_INTERVAL,
    progress: bool = True,
) -> tuple[Passages, BadRows]:
    """Returns the gold passages of these questions and `sample_size` random passages, from one reading of the
    corpus, and the bad rows that were left out. Both are in the file `out`, too; a file of the same scan is
    continued.

    Raises DataError for a corpus that cannot be read, for more passages than a file may hold, for an id of
    several passages, and for bad rows that are not to be left out: the file then stays unfinished (`done` is
    false), so that nothing but this command reads it.
    """
    evidence = list(evidence)
    ids = frozenset().union(*(gold.ids for gold in evidence))
    titles = frozenset().union(*(gold.titles for gold in evidence))
    scan = _PassageScan(ids, titles, sample_size, seed)
    file = StateFile(out, {"fingerprint": scan.fingerprint(corpus)}, MAX_BYTES, MAX_VALUES)
    file.read(scan.restore)
    repeated = BadRows() if scan.done else _scan_remaining(scan, corpus, file, save_interval, progress)
    is_refused = bool(scan.bad.count) and not skip_bad_rows
    if not scan.done:
        scan.done = not (is_refused or repeated.count)
        _save(scan, file)
    if is_refused:
        raise DataError(f"the corpus has {scan.bad.refusal()}")
    if repeated.count:
        raise DataError(refusal(repeated))
    return Passages(scan.by_id, scan.by_title, random_passages(scan.drawn)), scan.bad


def _scan_remaining(
    scan: _PassageScan, corpus: Corpus, file: StateFile, save_interval: int, progress: bool
) -> BadRows:
    """Read the corpus from the scan's position on; returns the passages with the id of an earlier one."""
    seen_ids = SeenIds.until(scan.position, corpus, progress=progress)
    for number, (row, position) in enumerate(corpus.rows(scan.position, progress=progress), 1):
        scan.position = position
        if isinstance(row, ValueError):
            scan.bad.add(corpus.location(position), row)
        else:
            seen_ids.add(row.id)
            scan.add(Document(row.id or "", row.contents))
        if number % save_interval == 0:
            _save(scan, file)
    return seen_ids.repeated(corpus, progress=progress)


def _save(scan: _PassageScan, file: StateFile) -> None:
    """Write the state. Raises DataError, and leaves the file as it was, if the state has outgrown what can be
    read again."""
    try:
        file.write(scan.state(), private=True, refuses_too_large=True)
    except TooLargeError as error:
        raise DataError(f"{file.path} has too many passages ({error}): {FEWER_QUESTIONS}") from error


def _legacy_position_text(position: CorpusPosition) -> str:
    """A position as earlier releases wrote it: their scans go on, and the same passages are drawn again."""
    return "Place(file={}, offset={}, row={})".format(*position)


def _pair(document: Document) -> tuple[str, str]:
    return document.id, document.contents
