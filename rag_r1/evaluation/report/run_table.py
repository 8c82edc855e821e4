"""Reads the records of a finished run into a table of numbers, one row for each episode.

    keys       (data source, question id, sample), sorted, so that the order of the records does not matter
    columns    an array for each metric (episode_metrics.py), nan where it is unknown
    failed     whether an episode was lost to a failure of the infrastructure

**A failed episode is not a wrong answer.** It has no scores: failed episodes are counted by kind, and left
out of all scores, costs and tests. An episode has failed if the engine failed, if its row cannot be used, or
if there was a bug. It has also failed if a search or another tool failed, unless the run's failure policy
(`failures.mask` in its card) shows such failures to the policy and continues the episode.

The same sample of a question may have several records, because it failed at first or because a run was
killed. A successful record replaces failed ones, and of failed or of equal records one is kept; each further
successful record that differs, be it in its seconds only, is a bad row (rag_r1/data/files/bad_rows.py). The
id of a record's question is `question_id`. Without that key it is the part of `id` before `#<sample>`, or
else the text of the question.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rag_r1.agent.records import located_records, trajectory_of
from rag_r1.data.annotations import Annotations, read_answerable, read_supporting
from rag_r1.data.evidence import GoldEvidence
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.rows import as_golds
from rag_r1.evaluation.failure_causes import cause_of, evidence_of
from rag_r1.evaluation.report.episode_metrics import TERM_PREFIX, episode_metrics, masked_kinds
from rag_r1.io.errors import DataError
from rag_r1.runs.errors import RunError

#: Data source, question id and sample of an episode.
Key = tuple[str, str, str]
#: Data source and id of a question.
QuestionKey = tuple[str, str]

#: An episode's id, which consists of the question's id and the sample.
_EPISODE_ID = re.compile(r"(.+)#(\d+)", re.DOTALL)
#: The errors that a record causes if it is not a trajectory, or has values of wrong types.
_UNUSABLE = (TypeError, ValueError, KeyError, AttributeError, OverflowError)


@dataclass(frozen=True)
class RunTable:
    """The episodes of a run, with one entry per episode in all lists and arrays (see the module)."""

    keys: list[Key]
    #: The text of each episode's question, and its gold answers.
    questions: list[tuple[str, tuple[str, ...]]]
    statuses: list[str]
    #: The kinds of failure in each episode, shown to the policy or masked.
    failures: list[tuple[str, ...]]
    failed: np.ndarray
    columns: dict[str, np.ndarray]
    #: The cause of a wrong answer (failure_causes.py), None for other episodes.
    causes: list[str | None]
    #: Rows that could not be used.
    bad: BadRows
    #: The number of records that were replaced by others of the same episode.
    replaced: int

    @property
    def terms(self) -> list[str]:
        """The names of the columns that hold terms of the reward."""
        return sorted(name for name in self.columns if name.startswith(TERM_PREFIX))

    @property
    def question_keys(self) -> list[QuestionKey]:
        """The key of each episode's question."""
        return [key[:2] for key in self.keys]

    def question_indices(self) -> tuple[list[QuestionKey], np.ndarray]:
        """Return the keys of the distinct questions, in order, and for each episode the index of its question
        among them."""
        indices: dict[QuestionKey, int] = {}
        of_episodes = [indices.setdefault(key, len(indices)) for key in self.question_keys]
        return list(indices), np.array(of_episodes, dtype=np.int64)


@dataclass(frozen=True)
class _EpisodeRow:
    """A row of the table."""

    key: Key
    #: The step of the training whose validation has played the episode; 0 in an evaluation.
    step: int
    question: str
    golds: tuple[str, ...]
    status: str
    failures: tuple[str, ...]
    failed: bool
    answer: str | None
    numbers: dict[str, float | None]
    cause: str | None = field(default=None, repr=False)

    @property
    def fingerprint(self) -> str:
        """A hash of all values but the cause, which follows from others. It decides which of two differing
        records is kept, so that the choice depends on the records alone, not on their order."""
        text = f"_Episode({repr(self).partition('(')[2]}"  # the class's former name, which keeps old choices
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_run(
    run: Path,
    *,
    mask: Collection[str] | None = None,
    answerable: Path | None = None,
    supporting: Path | None = None,
    step: int | None = None,
    skip_bad_rows: bool = False,
) -> RunTable:
    """Return the table of the records in a run's folder or in a file.

    `mask` are the kinds of failure that the run masks, None if they are unknown. `answerable` and
    `supporting` are files of annotations. `step` selects the validation at one step of a training. Raises
    DataError if a file is missing or cannot be read, and RunError if there are no usable records, bad rows
    that are not skipped, or records of several steps.
    """
    bad = BadRows()
    answerables = read_answerable(answerable, bad) if answerable else None
    evidence = read_supporting(supporting, bad) if supporting else None
    records = located_records(records_path(run), skip_broken=bad.add)
    bar = tqdm(records, f"reading {run.name}", unit=" records", disable=None, delay=2)
    read_row = partial(_read_row, mask=masked_kinds(mask), answerables=answerables, evidence=evidence)
    episodes, replaced = _without_repeats(bar, read_row, step, bad)
    if bad.count and not skip_bad_rows:
        raise RunError(f"{run}: nothing was written, because of {bad.refusal()}")
    _check_step(episodes, run, step)
    for annotation_file in (answerables, evidence):
        if annotation_file is not None:
            annotation_file.check()
    return _table(episodes, bad, replaced)


def _check_step(episodes: Sequence[_EpisodeRow], run: Path, step: int | None) -> None:
    """Raise RunError if there are no episodes, or if they belong to several steps of a training."""
    if not episodes and (step is None or not has_records(run)):
        raise no_records(run)
    if not episodes:
        raise RunError(
            f"{records_path(run)} has no records of --step {step}: see `rag-r1 view {run}` for its steps"
        )
    steps = sorted({episode.step for episode in episodes})
    if len(steps) > 1:
        names = ", ".join(map(str, steps))
        raise RunError(f"{records_path(run)} has records of the steps {names}: choose one with --step")


def has_records(run: Path) -> bool:
    """Return whether a run's folder or file has a record, even a broken one. Also returns True for a path
    that does not exist, which `read_run` refuses with a message of its own."""
    try:
        return next(located_records(records_path(run)), None) is not None
    except DataError:
        return True


def no_records(run: Path) -> RunError:
    """Return the error for a run without records."""
    return RunError(
        f"{records_path(run)} has no trajectory records: give a run's folder, or a file of records"
    )


def records_path(run: Path) -> Path:
    """Return the folder or file with the records of a run: its subfolder `trajectories` if there is one."""
    return run / "trajectories" if (run / "trajectories").is_dir() else run


def _read_row(
    record: Mapping[str, Any],
    *,
    mask: Collection[str],
    answerables: Annotations[bool] | None,
    evidence: Annotations[GoldEvidence] | None,
) -> _EpisodeRow:
    """Return the row of a record. Raises one of _UNUSABLE."""
    trajectory = trajectory_of(dict(record))
    source, question_id, _ = key = _key(record)
    golds = tuple(as_golds(record.get("golds")))
    kinds = tuple(sorted({failure.kind for failure in trajectory.failures}))
    failed = bool(set(kinds) & set(mask))
    if not golds and not failed:
        raise ValueError("it has no gold answers (`golds`)")
    gold_passages = (evidence.get(source, question_id) if evidence else None) or evidence_of(record)
    answerable = answerables.get(source, question_id) if answerables else None
    numbers = episode_metrics(trajectory, golds, gold_passages, answerable)
    for name, number in numbers.items():
        if number is not None and not math.isfinite(number):
            raise ValueError(f"{name.removeprefix(TERM_PREFIX)} is {number}")
    return _EpisodeRow(
        key=key,
        step=int(record.get("step") or 0),
        question=trajectory.question,
        golds=golds,
        status=str(trajectory.status),
        failures=kinds,
        failed=failed,
        answer=trajectory.answer,
        numbers=numbers,
        cause=cause_of(record),
    )


def _key(record: Mapping[str, Any]) -> Key:
    """Return the key of a record's episode."""
    record_id = str(record["id"])
    match = _EPISODE_ID.fullmatch(record_id)
    question_id = record.get("question_id") or (match[1] if match else record["question"])
    sample = record.get("sample", match[2] if match else record_id)
    return str(record.get("data_source") or ""), str(question_id), str(sample)


def _without_repeats(
    records: Iterable[tuple[str, dict[str, Any]]],
    read_row: Callable[[Mapping[str, Any]], _EpisodeRow],
    step: int | None,
    bad: BadRows,
) -> tuple[list[_EpisodeRow], int]:
    """Return the distinct episodes, sorted by key, and the number of records that were replaced by others of
    the same episode. Adds records that cannot be used or that contradict another one to `bad`."""
    versions_by_episode: dict[tuple[Key, int], dict[str, _EpisodeRow]] = {}
    count = 0
    for location, record in records:
        try:
            episode = read_row(record)
        except _UNUSABLE as error:
            name = f", record {str(record['id'])[:80]!r}" if "id" in record else ""
            bad.add(f"{location}{name}", error)
            continue
        if step is not None and episode.step != step:
            continue
        count += 1
        versions_by_episode.setdefault((episode.key, episode.step), {})[episode.fingerprint] = episode
    unique, contradicting = [], 0
    for (key, _), versions in sorted(versions_by_episode.items()):
        best, *repeats = sorted(versions.values(), key=lambda row: (row.failed, row.fingerprint))
        unique.append(best)
        for episode in repeats:
            if not episode.failed:
                contradicting += 1
                bad.add(f"record of {'/'.join(key[1:])!r}", "another record of the same episode differs")
    return unique, count - len(unique) - contradicting


def _table(episodes: list[_EpisodeRow], bad: BadRows, replaced: int) -> RunTable:
    """Return the table of these rows."""
    names = dict.fromkeys(name for episode in episodes for name in episode.numbers)
    columns = {  # None becomes nan
        name: np.array([each.numbers.get(name) for each in episodes], dtype=float) for name in names
    }
    _fill_answerable(columns["answerable"], [episode.key[0] for episode in episodes])
    return RunTable(
        keys=[episode.key for episode in episodes],
        questions=[(episode.question, episode.golds) for episode in episodes],
        statuses=[episode.status for episode in episodes],
        failures=[episode.failures for episode in episodes],
        failed=np.array([episode.failed for episode in episodes]),
        columns=columns,
        causes=[episode.cause for episode in episodes],
        bad=bad,
        replaced=replaced,
    )


def _fill_answerable(answerable: np.ndarray, sources: Sequence[str]) -> None:
    """Set the unknown values to 0 in each data source with a known one. A file lists all answerable questions
    of a source, so a question that it does not list is unanswerable. `sources` has each episode's source."""
    known_sources = set(compress(sources, ~np.isnan(answerable)))
    answerable[np.isnan(answerable) & np.array([source in known_sources for source in sources])] = 0.0
