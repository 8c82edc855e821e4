"""Collects the passages that probes need: gold passages and random ones.

The corpus is read as a stream, so only the kept passages and a hash of each id are in memory. A gold passage
is found by its id or by the title of its page; at most `MAX_PASSAGES_PER_PAGE` passages are kept of a page.
The random passages are a sample without replacement: those with the smallest hashes of the seed, the id and
the position in the corpus. So they do not depend on which gold passages are collected.

Every `save_interval` rows, the results and the position in the corpus are written to a file
(rag_r1/probes/passages.py), from which an interrupted scan is continued. Ids are not in the file, so a scan
that continues first reads those of the earlier rows again (rag_r1/corpus/seen_ids.py). The scan fails before
the file gets too large to be read.
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

#: The most passages that are kept of one page.
MAX_PASSAGES_PER_PAGE = 50
#: Random passages of the corpus, from which the probe `random` draws.
RANDOM_SAMPLE_SIZE = 2000
#: Rows of the corpus between two writes of the file.
SAVE_INTERVAL = 200_000
#: The beginning of every file of passages.
FILE_START = b'{"fingerprint": "'
#: Increased when scans of the same corpus collect something else, so that older files are not continued.
_VERSION = 1


class _ScanState(PassagesFile):
    """The whole content of the file, with the keys that continue a scan."""

    #: The position in the corpus (CorpusPosition).
    place: tuple[int, int, int]
    #: The number of bad rows, and the messages of the first ones.
    bad: tuple[int, list[str]]


@dataclass
class _PassageScan:
    """A scan of a corpus: what it looks for, what it has collected, and how far it has come."""

    #: Ids of gold passages.
    ids: frozenset[str]
    #: Titles of gold pages, as `title_key` returns them.
    titles: frozenset[str]
    #: The number of random passages.
    sample_size: int
    seed: int
    #: The gold passages that were found by id.
    by_id: dict[str, Document] = field(default_factory=dict)
    #: The passages of the gold pages that were found.
    by_title: dict[str, list[Document]] = field(default_factory=dict)
    #: The sample so far, a heap of (negative hash, id, contents): its first entry has the largest hash.
    drawn: list[Drawn] = field(default_factory=list)
    bad: BadRows = field(default_factory=BadRows)
    position: CorpusPosition = CorpusPosition()
    done: bool = False

    def fingerprint(self, corpus: Corpus) -> str:
        """Return a hash of the corpus's files and of what the scan looks for in them."""
        target = [_VERSION, corpus.fingerprint(), sorted(self.ids), sorted(self.titles)]
        target += [self.sample_size, self.seed, MAX_PASSAGES_PER_PAGE]
        return hashlib.sha256(json.dumps(target).encode()).hexdigest()

    def add(self, document: Document, position: CorpusPosition) -> None:
        """Keep a passage of the corpus if it is a gold passage, or belongs to the sample so far. `position`
        is the position after it."""
        if document.id in self.ids:
            self.by_id.setdefault(document.id, document)
        if self.titles and (key := title_key(title_of(document))) in self.titles:
            page = self.by_title.setdefault(key, [])
            if len(page) < MAX_PASSAGES_PER_PAGE:
                page.append(document)
        if self.sample_size:
            self._sample(document, position)

    def _sample(self, document: Document, position: CorpusPosition) -> None:
        """Add a passage to the sample; in a full sample, it replaces the passage with the largest hash if its
        own is smaller."""
        text = f"{self.seed}\n{document.id}\n{_legacy_position_text(position)}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        entry = (-int.from_bytes(digest[:8], "big"), *_pair(document))
        if len(self.drawn) < self.sample_size:
            heapq.heappush(self.drawn, entry)
        elif entry > self.drawn[0]:
            heapq.heapreplace(self.drawn, entry)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values, for `restore`."""
        return {
            "place": list(self.position),
            "done": self.done,
            "by_id": [_pair(document) for document in self.by_id.values()],
            "by_title": {key: [*map(_pair, page)] for key, page in self.by_title.items()},
            "drawn": sorted(self.drawn),
            "bad": [self.bad.count, self.bad.first],
        }

    def restore(self, content: Mapping[str, Any]) -> None:
        """Continue from a state that `state` has returned. Raises ValueError if it has another shape."""
        state = _ScanState.model_validate(content, strict=False)  # JSON has lists in place of tuples
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
    """Scan the corpus; return the gold passages of the questions with `sample_size` random passages, and
    the bad rows that were left out. Both are also written to the file `out`. If that file belongs to a
    scan with the same parameters, an interrupted scan is continued, and the result of a finished one is
    returned.

    Raises OSError if the file cannot be written, and DataError if the corpus cannot be read, if there are
    more passages than a file may hold, if several passages have the same id, or if there are bad rows and
    `skip_bad_rows` is false. The file of such a scan does not count as finished (`done`), so that no training
    uses it. One that was finished with `skip_bad_rows` before stays finished.
    """
    evidence = list(evidence)
    ids = frozenset().union(*(gold.ids for gold in evidence))
    titles = frozenset().union(*(gold.titles for gold in evidence))
    scan = _PassageScan(ids, titles, sample_size, seed)
    file = StateFile(out, {"fingerprint": scan.fingerprint(corpus)}, MAX_BYTES, MAX_VALUES)
    file.read(scan.restore)
    repeated = BadRows() if scan.done else _scan_rest(scan, corpus, file, save_interval, progress=progress)
    is_refused = bool(scan.bad.count) and not skip_bad_rows
    if not scan.done:
        scan.done = not (is_refused or repeated.count)
        _save(scan, file)
    if is_refused:
        raise DataError(f"the corpus has {scan.bad.refusal()}")
    if repeated.count:
        raise DataError(refusal(repeated))
    return Passages(scan.by_id, scan.by_title, random_passages(scan.drawn)), scan.bad


def _scan_rest(
    scan: _PassageScan, corpus: Corpus, file: StateFile, save_interval: int, *, progress: bool
) -> BadRows:
    """Read the corpus from the scan's position to its end. Returns the passages that repeat the id of an
    earlier one."""
    seen_ids = SeenIds.until(scan.position, corpus, progress=progress)
    for number, (row, position) in enumerate(corpus.rows(scan.position, progress=progress), 1):
        scan.position = position
        if isinstance(row, ValueError):
            scan.bad.add(corpus.location(position), row)
        else:
            seen_ids.add(row.id)
            scan.add(Document(row.id or "", row.contents), position)  # a corpus has ids, see corpus/reader.py
        if number % save_interval == 0:
            _save(scan, file)
    return seen_ids.repeated(corpus, progress=progress)


def _save(scan: _PassageScan, file: StateFile) -> None:
    """Write the scan's state to the file. If the state is too large to be read again, leaves the file
    unchanged and raises DataError."""
    try:
        file.write(scan.state(), private=True, refuses_too_large=True)
    except TooLargeError as error:
        raise DataError(f"{file.path} has too many passages ({error}): {FEWER_QUESTIONS}") from error


def _legacy_position_text(position: CorpusPosition) -> str:
    """Return a position as earlier releases wrote it, so that their scans continue with the same sample."""
    return "Place(file={}, offset={}, row={})".format(*position)


def _pair(document: Document) -> tuple[str, str]:
    return document.id, document.contents
