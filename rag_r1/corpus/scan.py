"""Scans a corpus once for all ids, titles and answers.

What is kept grows with what is looked for, not with the corpus: for each id whether it is there, for each
title how it matched, for each answer in how many passages it stands and in which first. After every
`interval` rows this is written to a file, with the position that was reached. A scan that was killed goes on
from there; a scan that has ended is not repeated as long as corpus and questions are the same. It also looks
for ids that several passages have (seen_ids.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rag_r1.corpus.answer_matcher import AnswerMatcher
from rag_r1.corpus.reader import Corpus, CorpusPosition
from rag_r1.corpus.seen_ids import SeenIds
from rag_r1.corpus.title_index import TitleIndex
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.runs.state_file import StateFile

#: Rows after which the state of a scan is written.
SAVE_INTERVAL = 200_000
#: Is raised whenever the scan of the same files would give another result.
_VERSION = 2


@dataclass
class ScanTargets:
    """The ids, titles and answers that a scan looks for. `probe`: ids that the retrieval server returned, to
    see whether it serves this corpus; they change nothing else."""

    ids: frozenset[str] = frozenset()
    titles: TitleIndex = field(default_factory=lambda: TitleIndex(()))
    answers: AnswerMatcher = field(default_factory=AnswerMatcher)
    probe: frozenset[str] = frozenset()

    def fingerprint(self, corpus: Corpus) -> str:
        """A hash of the corpus's files (paths, sizes, times) and of all that is looked for in them, but for
        `probe`."""
        digest = hashlib.sha256()
        answers = list(self.answers.keys)
        for part in ([_VERSION], *corpus.fingerprint(), sorted(self.ids), *self.titles.names(), answers):
            digest.update(json.dumps(part).encode())
        return digest.hexdigest()


@dataclass
class ScanResult:
    """The results of a scan up to the position `place`; the matches of titles are in `ScanTargets.titles`."""

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


def scan_corpus(
    corpus: Corpus, targets: ScanTargets, state: Path, *, interval: int = SAVE_INTERVAL, progress: bool = True
) -> ScanResult:
    """Look for the targets in all passages. Goes on from the state in the file `state` if it is that of the
    same scan, and writes its own there after every `interval` rows. Raises DataError for a broken file."""
    file = StateFile(state, {"fingerprint": targets.fingerprint(corpus)}, 1 << 30, 20_000_000)
    result = file.read(partial(_restore, targets=targets)) or ScanResult(probe=targets.probe)
    if result.done:
        return result
    seen_ids = SeenIds.until(result.place, corpus, progress=progress)
    numbers = targets.answers.keys
    counts: dict[int, list[Any]] = {numbers[key]: [*value] for key, value in result.answers.items()}
    ids = targets.ids | result.probe
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
                targets.titles.note(title)
            for number in targets.answers.matches_in(row.contents):
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
    """Write the state of a scan. `present`: the ids that were matched; `counts`: number of an answer ->
    (passages with it, id of the first one)."""
    keys = list(targets.answers.keys)
    result.ids, result.probe_found = present & targets.ids, present & result.probe
    result.answers = {keys[number]: (count, first) for number, (count, first) in counts.items()}
    file.write(_state(result, targets), durable=True)


def _state(result: ScanResult, targets: ScanTargets) -> dict[str, Any]:
    """The state of a scan as JSON values, for `_restore`."""
    sets = {name: sorted(getattr(result, name)) for name in ("ids", "probe", "probe_found")}
    rows = {name: vars(getattr(result, name)) for name in ("bad", "repeated")}
    return {**vars(result), **sets, **rows, "titles": targets.titles.matches}


def _restore(state: Mapping[str, Any], targets: ScanTargets) -> ScanResult:
    """The scan of a state that `_state` made; the matches of titles go into `targets`."""
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
