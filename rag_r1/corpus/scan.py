"""Scans a corpus once for all ids, titles and answers.

What is kept grows with what is looked for, not with the corpus: for each id whether it is there, for each
title how it matched, for each answer in how many passages it stands and in which first. After every
`interval` passages this is written to a file, with the place that was reached. A scan that was killed
goes on from there; a scan that has ended is not repeated as long as corpus and questions are the same. It
also looks for ids that several passages have, which an index refuses.

For that, 8 bytes of a hash of each id are kept in memory. Only a corpus in which two of these are equal is
read again, for the places.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.reader import START, Corpus, CorpusPosition, Passage
from rag_r1.corpus.title_index import TitleIndex
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.runs.state_file import StateFile

SAVE_INTERVAL = 200_000
#: Changes whenever the same files would be found to hold something else.
_VERSION = 2


@dataclass
class ScanTargets:
    """What is looked for. `probe`: ids that the retrieval server returned, to see whether it serves this
    corpus; they change nothing else."""

    ids: frozenset[str] = frozenset()
    titles: TitleIndex = field(default_factory=lambda: TitleIndex(()))
    answers: AnswerMatcher = field(default_factory=AnswerMatcher)
    probe: frozenset[str] = frozenset()

    def fingerprint(self, corpus: Corpus) -> str:
        """Of the corpus's files and of all that is looked for in them."""
        digest = hashlib.sha256()
        for part in (
            [_VERSION],
            *corpus.fingerprint(),
            sorted(self.ids),
            *self.titles.names(),
            list(self.answers.keys),
        ):
            digest.update(json.dumps(part).encode())
        return digest.hexdigest()


@dataclass
class ScanResult:
    """The matches until `place`; those of the titles are in `ScanTargets.titles`."""

    place: CorpusPosition = CorpusPosition()
    passages: int = 0
    done: bool = False
    ids: set[str] = field(default_factory=set)
    #: Key of an answer -> passages with it, and the id of the first one.
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    probe: frozenset[str] = frozenset()
    probe_found: set[str] = field(default_factory=set)
    bad: BadRows = field(default_factory=BadRows)
    #: Passages with the id of an earlier one.
    repeated: BadRows = field(default_factory=BadRows)


class SeenIds:
    """The ids that have been read so far, as hashes."""

    def __init__(self) -> None:
        self._hashes = array("Q")

    @classmethod
    def until(cls, end: CorpusPosition, corpus: Corpus, *, progress: bool) -> Self:
        """Those that an earlier start has read, up to this place."""
        ids = cls()
        if end != START:
            for row, position in corpus.rows(progress=progress, doing="reading ids again"):
                if isinstance(row, Passage):
                    ids.add(row.id)
                if position == end:
                    break
        return ids

    def add(self, passage_id: str | None) -> None:
        """Note the id of the next passage."""
        if passage_id is not None:
            self._hashes.append(_hash_of(passage_id))

    def repeated(self, corpus: Corpus, *, progress: bool) -> BadRows:
        """The passages with the id of an earlier one, once all ids are noted."""
        in_order = np.sort(np.frombuffer(self._hashes, np.uint64))
        equal = frozenset(in_order[1:][in_order[1:] == in_order[:-1]].tolist())
        repeated, first_places = BadRows(), dict[str, str]()
        rows = corpus.rows(progress=progress, doing="finding repeated ids") if equal else ()
        for row, position in rows:
            if isinstance(row, ValueError) or row.id is None or _hash_of(row.id) not in equal:
                continue
            location = corpus.location(position)
            if (first := first_places.setdefault(row.id, location)) != location:
                repeated.add(location, f"the id {row.id!r} is that of {first}")
        return repeated


def refusal(repeated: BadRows) -> str:
    """The message with which a corpus with such passages is refused."""
    return f"{repeated.named()}. Give each passage its own id."


def _hash_of(passage_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(passage_id.encode(), digest_size=8).digest(), "big")


def scan_corpus(
    corpus: Corpus, targets: ScanTargets, state: Path, *, interval: int = SAVE_INTERVAL, progress: bool = True
) -> ScanResult:
    """Look for everything in all passages; goes on from the file `state` if it is of the same scan."""
    file = StateFile(state, {"fingerprint": targets.fingerprint(corpus)}, 1 << 30, 20_000_000)
    result = file.read(partial(_restore, targets=targets)) or ScanResult(probe=targets.probe)
    if result.done:
        return result
    seen_ids = SeenIds.until(result.place, corpus, progress=progress)
    numbers = targets.answers.keys
    counts: dict[int, list[Any]] = {numbers[key]: [*value] for key, value in result.answers.items()}
    ids, note, matches_in = targets.ids | result.probe, targets.titles.note, targets.answers.matches_in
    present: set[str] = result.ids | result.probe_found
    save = partial(_save, file, result, targets, present, counts)
    rows = corpus.rows(result.place, progress=progress, doing="scanning corpus")
    for n_rows, (row, position) in enumerate(rows, 1):
        result.place = position
        if isinstance(row, ValueError):
            result.bad.add(corpus.location(position), row)
        else:
            result.passages += 1
            seen_ids.add(row.id)
            if row.id in ids:
                present.add(row.id)
            if title := row.title:
                note(title)
            for number in matches_in(row.contents):
                counts.setdefault(number, [0, row.id])[0] += 1
        if n_rows % interval == 0:
            save()
    result.repeated = seen_ids.repeated(corpus, progress=progress)
    result.done = True
    save()
    return result


def _save(
    file: StateFile,
    result: ScanResult,
    targets: ScanTargets,
    present: set[str],
    counts: Mapping[int, Sequence[Any]],
) -> None:
    """Write the state of a scan. `present`: the ids that were matched; `counts`: of the answers by number."""
    keys = list(targets.answers.keys)
    result.ids, result.probe_found = present & targets.ids, present & result.probe
    result.answers = {keys[number]: (count, first) for number, (count, first) in counts.items()}
    file.write(_state(result, targets), durable=True)


def _state(result: ScanResult, targets: ScanTargets) -> dict[str, Any]:
    """The state of a scan as JSON."""
    sets = {name: sorted(getattr(result, name)) for name in ("ids", "probe", "probe_found")}
    rows = {name: vars(getattr(result, name)) for name in ("bad", "repeated")}
    return {**vars(result), **sets, **rows, "titles": targets.titles.matches}


def _restore(state: Mapping[str, Any], targets: ScanTargets) -> ScanResult:
    """The inverse."""
    result = ScanResult(
        place=CorpusPosition(*state["place"]),
        passages=int(state["passages"]),
        done=bool(state["done"]),
        ids=set(state["ids"]),
        answers={key: (count, first) for key, (count, first) in state["answers"].items()},
        probe=frozenset(state["probe"]),
        probe_found=set(state["probe_found"]),
        bad=BadRows(**state["bad"]),
        repeated=BadRows(**state["repeated"]),
    )
    targets.titles.matches = {title: (level, name) for title, (level, name) in state["titles"].items()}
    return result
