"""Scans a corpus once for all ids, titles and answers.

What is kept grows with what is looked for, not with the corpus: for each id whether it is there, for each
title how it matched, for each answer in how many passages it stands and in which first. After every
`save_every` passages this is written to a file, with the place that was reached. A scan that was killed goes
on from there; a scan that has ended is not repeated as long as corpus and questions are the same.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.reader import BadPassageError, Corpus, CorpusPosition
from rag_r1.corpus.title_index import TitleIndex
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.io.atomic_files import write_text
from rag_r1.io.bounded_json import read_json_file

SAVE_EVERY = 200_000
#: Changes whenever the same files would be found to hold something else.
_VERSION = 1


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
    """What was found until `place`. The titles are in `Wanted.titles`."""

    place: CorpusPosition = CorpusPosition()
    passages: int = 0
    done: bool = False
    ids: set[str] = field(default_factory=set)
    #: Key of an answer -> passages with it, and the id of the first one.
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    probe: frozenset[str] = frozenset()
    probe_found: set[str] = field(default_factory=set)
    bad: BadRows = field(default_factory=BadRows)

    def count(self, key: str) -> int:
        """In how many passages the answer with this key stands."""
        return self.answers.get(key, (0, ""))[0]


def scan_corpus(
    corpus: Corpus, wanted: ScanTargets, state: Path, *, save_every: int = SAVE_EVERY, progress: bool = True
) -> ScanResult:
    """Look for everything in all passages; goes on from the file `state` if it is of the same scan."""
    fingerprint = wanted.fingerprint(corpus)
    found = _load(state, fingerprint, wanted)
    if found.done:
        return found
    counts: dict[int, list[Any]] = {
        wanted.answers.keys[key]: [*value] for key, value in found.answers.items()
    }
    keys = list(wanted.answers.keys)
    ids, note, found_in = wanted.ids | found.probe, wanted.titles.note, wanted.answers.found_in
    seen: set[str] = found.ids | found.probe_found
    read = 0
    for row, place in corpus.rows(found.place, progress=progress, doing="scanning corpus"):
        found.place = place
        if isinstance(row, BadPassageError):
            found.bad.add(corpus.where(place), row)
        else:
            found.passages += 1
            if row.id in ids:
                seen.add(row.id)
            if title := row.title:
                note(title)
            for number in found_in(row.contents):
                if number in counts:
                    counts[number][0] += 1
                else:
                    counts[number] = [1, row.id]
        read += 1
        if read % save_every == 0:
            _keep(found, seen, counts, keys, wanted)
            _save(state, fingerprint, found, wanted)
    found.done = True
    _keep(found, seen, counts, keys, wanted)
    _save(state, fingerprint, found, wanted)
    return found


def _keep(
    found: ScanResult, seen: set[str], counts: dict[int, list[Any]], keys: list[str], wanted: ScanTargets
) -> None:
    found.ids, found.probe_found = seen & wanted.ids, seen & found.probe
    found.answers = {keys[number]: (count, first) for number, (count, first) in counts.items()}


def _save(path: Path, fingerprint: str, found: ScanResult, wanted: ScanTargets) -> None:
    state = {
        "fingerprint": fingerprint,
        "place": found.place,
        "passages": found.passages,
        "done": found.done,
        "ids": sorted(found.ids),
        "titles": wanted.titles.found,
        "answers": found.answers,
        "probe": sorted(found.probe),
        "probe_found": sorted(found.probe_found),
        "bad": [found.bad.count, found.bad.first],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(state, ensure_ascii=False), durable=True)


def _load(path: Path, fingerprint: str, wanted: ScanTargets) -> ScanResult:
    """What an earlier, equal scan has found; nothing if there was none, or its file is broken."""
    fresh = ScanResult(probe=wanted.probe)
    try:
        state = read_json_file(path, 1 << 30, 20_000_000)
        if state["fingerprint"] != fingerprint:
            return fresh
        found = ScanResult(
            place=CorpusPosition(*state["place"]),
            passages=int(state["passages"]),
            done=bool(state["done"]),
            ids=set(state["ids"]),
            answers={key: (count, first) for key, (count, first) in state["answers"].items()},
            probe=frozenset(state["probe"]),
            probe_found=set(state["probe_found"]),
            bad=BadRows(*state["bad"]),
        )
        titles = {title: (level, name) for title, (level, name) in state["titles"].items()}
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return fresh
    wanted.titles.found = titles
    return found
