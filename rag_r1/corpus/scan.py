"""Scans a corpus for all ids, titles and answers that the questions need, all of them in one pass.

The saved state of a scan grows with the number of these targets and not with the corpus: for each id whether
it is present, for each title its best match, and for each answer the number of passages that contain it and
the first of them. After every `interval` rows the state and the position are saved, so a scan that was killed
resumes there. A completed scan is not repeated unless the corpus or the questions change.

The scan also finds ids that several passages share (seen_ids.py). For this it keeps 8 bytes for each passage
in memory, which are not saved: a scan that resumes first reads the ids before its position again. If two of
these hashes are equal, the corpus is read once more at the end.
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
from rag_r1.corpus.reader import Corpus, CorpusPosition, Passage
from rag_r1.corpus.seen_ids import SeenIds
from rag_r1.corpus.title_index import TitleIndex
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.runs.state_file import StateFile

#: Number of rows after which the state of a scan is saved.
SAVE_INTERVAL = 200_000
#: To be increased whenever a change of the code changes the result of a scan.
_VERSION = 2
#: A larger state would count as missing. Each id, title or answer has a few values and some hundred bytes.
_MAX_STATE_BYTES, _MAX_STATE_VALUES = 1 << 30, 20_000_000


@dataclass
class ScanTargets:
    """The ids, titles and answers that a scan searches for."""

    ids: frozenset[str] = frozenset()
    titles: TitleIndex = field(default_factory=lambda: TitleIndex(()))
    answers: AnswerMatcher = field(default_factory=AnswerMatcher)
    #: Ids that the retrieval servers returned, to find out whether they serve this corpus.
    probe: frozenset[str] = frozenset()

    def fingerprint(self, corpus: Corpus) -> str:
        """Return a hash of the corpus's files (paths, sizes, times) and of all targets except `probe`."""
        digest = hashlib.sha256()
        answers = list(self.answers.keys)
        for part in ([_VERSION], *corpus.fingerprint(), sorted(self.ids), *self.titles.names(), answers):
            digest.update(json.dumps(part).encode())
        return digest.hexdigest()


@dataclass
class ScanResult:
    """The results of a scan so far, except for the matches of titles, which are in `ScanTargets.titles`."""

    #: The position up to which the corpus has been scanned.
    place: CorpusPosition = CorpusPosition()
    #: Number of passages that have been scanned.
    passages: int = 0
    #: Whether the whole corpus has been scanned.
    done: bool = False
    #: The target ids that are in the corpus.
    ids: set[str] = field(default_factory=set)
    #: Maps the key of each answer in the corpus to the number of passages with it and the id of the first.
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    #: The ids that the retrieval servers returned when the scan began.
    probe: frozenset[str] = frozenset()
    #: Those of them that are in the corpus.
    probe_found: set[str] = field(default_factory=set)
    #: Rows that are not usable passages.
    bad: BadRows = field(default_factory=BadRows)
    #: Passages with the id of an earlier one.
    repeated: BadRows = field(default_factory=BadRows)


def scan_corpus(
    corpus: Corpus, targets: ScanTargets, state: Path, *, interval: int = SAVE_INTERVAL, progress: bool = True
) -> ScanResult:
    """Search all passages for the targets. Returns the result, and puts the matches of titles into
    `targets.titles`.

    Resumes from the state in the file `state` if it belongs to the same scan, and saves its own state there
    after every `interval` rows. Raises DataError for a broken file of the corpus.
    """
    made_from = {"fingerprint": targets.fingerprint(corpus)}
    state_file = StateFile(state, made_from, max_bytes=_MAX_STATE_BYTES, max_values=_MAX_STATE_VALUES)
    result = state_file.read(partial(_restore, targets=targets)) or ScanResult(probe=targets.probe)
    if result.done:
        return result
    seen_ids = SeenIds.until(result.place, corpus, progress=progress)
    answer_keys = list(targets.answers.keys)  # by the index of the answer
    rows = corpus.rows(result.place, progress=progress, doing="scanning corpus")
    for n_rows, (row, position) in enumerate(rows, 1):
        result.place = position
        if isinstance(row, ValueError):
            result.bad.add(corpus.location(position), row)
        else:
            seen_ids.add(row.id)
            _add_matches(row, targets, answer_keys, result)
        if n_rows % interval == 0:
            state_file.write(_state(result, targets), durable=True)
    result.repeated = seen_ids.repeated(corpus, progress=progress)
    result.done = True
    state_file.write(_state(result, targets), durable=True)
    return result


def _add_matches(
    passage: Passage, targets: ScanTargets, answer_keys: Sequence[str], result: ScanResult
) -> None:
    """Add what a passage matches to `result`, and the match of its title to `targets.titles`."""
    assert passage.id is not None  # a corpus that is scanned requires ids
    result.passages += 1
    if passage.id in targets.ids:
        result.ids.add(passage.id)
    if passage.id in result.probe:
        result.probe_found.add(passage.id)
    if title := passage.title:
        targets.titles.note(title)
    for index in targets.answers.matches_in(passage.contents):
        count, first_id = result.answers.get(answer_keys[index], (0, passage.id))
        result.answers[answer_keys[index]] = count + 1, first_id


def _state(result: ScanResult, targets: ScanTargets) -> dict[str, Any]:
    """Return the state of a scan as JSON values, which `_restore` can read."""
    sets = {name: sorted(getattr(result, name)) for name in ("ids", "probe", "probe_found")}
    rows = {name: vars(getattr(result, name)) for name in ("bad", "repeated")}
    return {**vars(result), **sets, **rows, "titles": targets.titles.matches}


def _restore(state: Mapping[str, Any], targets: ScanTargets) -> ScanResult:
    """Return the scan whose state `_state` returned, and put the matches of titles into `targets`."""
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
