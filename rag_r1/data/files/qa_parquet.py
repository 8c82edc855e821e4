"""Converts questions to parquet in veRL's layout, without duplicates.

duplicates.py defines which rows are duplicates. A question in both splits is always removed from train, so
test keeps its published rows and none of them is trained on. Every row that was removed, or that has the same
question as another one, is listed in `repeated_questions.jsonl` with the row that it repeats and the answers
of both.

Every row has a unique id, `source/split/id`. Its last part is the source's own id if it is unique, and
otherwise a hash of the question (and of the answers, if several rows have the same question). So a question
has the same id under every protocol, and data sets of several sources can be merged.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rag_r1.data.files.duplicates import Outcome, RepeatedRow, drop_duplicates, golds_key, question_key
from rag_r1.data.files.question_file import QuestionFile
from rag_r1.data.files.questions import Question
from rag_r1.data.rows import QuestionRow, write_rows
from rag_r1.io.atomic_files import atomic_file, write_json, write_json_lines
from rag_r1.io.errors import DataError
from rag_r1.protocols import Protocol

#: The file that lists the rows with a repeated question.
REPEATED = "repeated_questions.jsonl"
#: The files of a set, in its folder.
SET_FILES = ("train.parquet", "test.parquet", "data_summary.json", REPEATED)


@dataclass(frozen=True)
class Split:
    """A split: the questions that are kept, and the rows that repeat another row's question."""

    name: str
    source: QuestionFile
    questions: list[Question]
    repeats: list[RepeatedRow] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of rows: read = malformed + duplicates + overlap_with_test + written."""
        overlap = sum(repeat.outcome == Outcome.IN_TEST for repeat in self.repeats)
        return {
            "read": self.source.n_read,
            "malformed": self.source.n_malformed,
            "duplicates": sum(repeat.is_removed for repeat in self.repeats) - overlap,
            "overlap_with_test": overlap,
            "written": len(self.questions),
        }

    @property
    def other_answers(self) -> int:
        """The number of rows with a repeated question that are kept because their answers differ."""
        return sum(not repeat.is_removed for repeat in self.repeats)

    @property
    def repeated_ids(self) -> int:
        """The number of kept rows whose own id is not unique, and whose id is therefore a hash."""
        counts = Counter(question.id for question in self.questions if question.id is not None)
        return sum(count for count in counts.values() if count > 1)


def make_splits(train: QuestionFile | None, test: QuestionFile | None) -> list[Split]:
    """Return the splits of the files that are not None, train first, without duplicates and without overlap.
    Raises DataError if no question is left to train on."""
    test_splits = [Split("test", test, *drop_duplicates(test.questions))] if test else []
    if not train:
        return test_splits
    return [_train_split(train, test_splits[0].questions if test_splits else []), *test_splits]


def _train_split(train: QuestionFile, test_questions: list[Question]) -> Split:
    """Return the training split without the questions that are in test. Raises DataError if no question is
    left."""
    in_test: dict[str, Question] = {}
    for question in test_questions:
        in_test.setdefault(question_key(question.question), question)
    kept, overlap = [], []
    questions, repeats = drop_duplicates(train.questions)
    for question in questions:
        if first := in_test.get(question_key(question.question)):
            overlap.append(RepeatedRow(question, first, Outcome.IN_TEST))
        else:
            kept.append(question)
    if not kept:
        raise DataError(f"every question of {train.name} is also in the validation set: give other questions")
    # A row that overlaps is listed only once, as removed, even if it also repeats a question within train.
    overlapping = {id(repeat.row) for repeat in overlap}
    repeats = [repeat for repeat in repeats if id(repeat.row) not in overlapping]
    return Split("train", train, kept, repeats + overlap)


def make_rows(
    questions: list[Question], protocol: Protocol, source_name: str, split: str
) -> list[QuestionRow]:
    """Return the rows of a split's questions; their `index` counts from 0."""
    id_counts = Counter(question.id for question in questions)
    key_counts = Counter(question_key(question.question) for question in questions)
    return [
        make_row(
            item,
            protocol,
            source_name,
            split,
            index,
            repeated_id=id_counts[item.id] > 1,
            repeated_question=key_counts[question_key(item.question)] > 1,
        )
        for index, item in enumerate(questions)
    ]


def make_row(
    item: Question,
    protocol: Protocol,
    source_name: str,
    split: str,
    index: int,
    *,
    repeated_id: bool,
    repeated_question: bool,
) -> QuestionRow:
    """Return the row of a question; `index` is its position in the file. `repeated_id` and
    `repeated_question` say whether another row of the same source and split has the same id or question."""
    id_in_split = short_id(item, repeated_id=repeated_id, repeated_question=repeated_question)
    return QuestionRow(
        item.question,
        golds=item.golds,
        prompt=tuple(protocol.messages(item.question)),
        id=f"{source_name}/{split}/{id_in_split}",
        split=split,
        data_source=source_name,
        protocol=protocol.name,
        index=index,
        metadata=item.metadata,
    )


def short_id(item: Question, *, repeated_id: bool, repeated_question: bool) -> str:
    """Return the last part of a row's id: the source's own id if it is unique, and otherwise a hash of the
    question, and also of its answers if another row has the same question."""
    if item.id is not None and not repeated_id:
        return item.id
    key = question_key(item.question)
    if repeated_question:
        key = "\n".join([key, *sorted(golds_key(item))])
    return "q-" + hashlib.sha256(key.encode()).hexdigest()[:16]


def write_splits(
    splits: list[Split],
    protocol: Protocol,
    source_name: str,
    folder: Path,
    details: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `<split>.parquet`, `data_summary.json` and, if there are any, the repeated questions. Returns the
    summary, to which `details` is added.

    Raises DataError, and writes nothing, if the folder has a split from an earlier run that would not be
    replaced, because the new rows were not compared with it. Raises OSError if a file cannot be written.
    """
    refuse_leftovers({split.name for split in splits}, folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = ((split.name, make_rows(split.questions, protocol, source_name, split.name)) for split in splits)
    write_split_files(folder, rows)
    counts = {}
    for split in splits:
        counts[split.name] = {
            "source": split.source.name,
            **split.counts,
            "same_question_other_answers": split.other_answers,
            "rows_with_repeated_id": split.repeated_ids,
            "first_malformed": split.source.malformed,
        }
    repeated = [repeat.to_dict(split.name) for split in splits for repeat in split.repeats]
    write_report(folder / REPEATED, repeated)
    summary = {"source_name": source_name, "protocol": protocol.name, **(details or {}), "splits": counts}
    write_json(folder / "data_summary.json", summary, ensure_ascii=False)
    return summary


def write_report(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write a report as JSON lines, or remove that of an earlier run if there are no lines."""
    if not write_json_lines(path, lines):
        path.unlink()


def write_split_files(folder: Path, splits: Iterable[tuple[str, Iterable[QuestionRow]]]) -> None:
    """Write the rows of each split to `<name>.parquet`.

    The files are replaced one right after the other when all are written, since a row of a new training file
    may be in an earlier test file. After an error or a kill before that, those of an earlier run remain.
    """
    with ExitStack() as files:
        for name, rows in splits:
            write_rows(files.enter_context(atomic_file(folder / f"{name}.parquet")), rows)


def refuse_leftovers(written: Collection[str], folder: Path) -> None:
    """Raise DataError if the folder has the file of a split that is not among `written`, the names of the
    splits that are written now."""
    for name, option in (("train", "--train"), ("test", "--validation")):
        if name not in written and (folder / f"{name}.parquet").exists():
            raise DataError(
                f"{folder / name}.parquet is there from an earlier run and would stay, although the new rows "
                f"are not compared with it. Give {option} as well, remove the file, or choose another --out"
            )
