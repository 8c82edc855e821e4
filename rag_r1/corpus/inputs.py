"""Reads and checks the input files of the commands that work on a corpus, before the hour that these take.

All questions are read. Of each corpus file only the first rows are read, which is enough to detect a missing
column, a wrong separator or a broken file, and to name the bad rows of a small one. All problems are reported
together (rag_r1/runs/start_checks.py). `passages_of` then reads a corpus for commands without bad rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from rag_r1.corpus.questions import CorpusQuestions, read_questions
from rag_r1.corpus.reader import SUFFIXES, Corpus, CorpusPosition, Passage
from rag_r1.data.files.bad_rows import BadRows
from rag_r1.data.files.row_files import open_bytes, refuse_utf16
from rag_r1.io.errors import DataError
from rag_r1.runs.start_checks import StartChecks

#: Number of rows of each file that are read before the work.
_CHECKED_ROWS = 1000
_ROW = "a passage has an `id`, and `contents` or `title` and `text`"


@dataclass(frozen=True)
class CorpusInputs:
    """The questions, the corpus, and the passages that may be added to a repaired corpus."""

    questions: CorpusQuestions
    corpus: Corpus
    supply: Corpus

    def __str__(self) -> str:
        return f"{len(self.questions.questions):,} questions and a corpus of {len(self.corpus.files):,} files"


def read_inputs(
    checks: StartChecks,
    questions: Sequence[Path],
    corpus: Sequence[Path],
    supply: Sequence[Path] = (),
    *,
    skip_bad_rows: bool = False,
) -> CorpusInputs | None:
    """Read the questions, and open the corpus and the supply. Returns None if one of them has a problem,
    which is then added to `checks`."""

    def read_all(paths: Sequence[Path]) -> CorpusQuestions:
        data = read_questions(paths)
        data.bad.refuse(skip_bad_rows, "nothing was written")
        return data

    def open_corpus(paths: Sequence[Path], ids: bool = True) -> Corpus:
        result = Corpus(paths, ids=ids)
        check_first_rows(result, skip_bad_rows)
        return result

    data = checks.run_on_all(read_all, questions)
    passages = checks.run_on_all(open_corpus, corpus)
    supply_corpus = checks.run_on_all(partial(open_corpus, ids=False), supply)
    return CorpusInputs(data, passages, supply_corpus) if data and passages and supply_corpus else None


def passages_of(corpus: Corpus, *, progress: bool = True) -> Iterator[tuple[Passage, Path]]:
    """Yield each passage with its file. At the end, raises DataError, with file and line, if there were rows
    that are not passages."""
    bad = BadRows()
    for row, position in corpus.rows(progress=progress):
        if isinstance(row, ValueError):
            bad.add(corpus.location(position), row)
        else:
            yield row, corpus.files[position.file]
    if bad.count:
        raise DataError(f"{bad.named()}: repair the corpus (`rag-r1 corpus check`)")


def check_first_rows(corpus: Corpus, skip_bad_rows: bool | None = None, *, most: int = _CHECKED_ROWS) -> None:
    """Check the first `most` rows of each file. Raises DataError if the files have no rows at all and, unless
    `skip_bad_rows` says to leave such rows out, StartError with the files whose first rows are not all
    passages. `skip_bad_rows` is None for a command without this flag, which the message then does not
    name."""
    with StartChecks() as checks:
        indices = range(len(corpus.files))
        counts = [checks.run(_count_first_rows, corpus, index, most, skip_bad_rows) for index in indices]
    if counts and not any(counts):
        raise DataError(f"{', '.join(map(str, corpus.files))}: no passage in it; {_ROW}: give another file")


def _count_first_rows(corpus: Corpus, index: int, most: int, skip_bad_rows: bool | None) -> int:
    """Check the first `most` rows of one file and return their number. Raises DataError as `check_first_rows`
    does."""
    bad = BadRows()
    count = 0
    for row, position in islice(corpus.rows(CorpusPosition(index), progress=False), most):
        if position.file != index:  # a row of the next file
            break
        count += 1
        if isinstance(row, ValueError):
            bad.add(corpus.location(position), row)
    if bad.count and not skip_bad_rows:
        _refuse_other_file(corpus.files[index], corpus.ids)
        flag = "" if skip_bad_rows is None else ", or leave such rows out with --skip-bad-rows"
        raise DataError(f"{bad.named()}; {_ROW}: correct the file{flag}")
    return count


def _refuse_other_file(path: Path, ids: bool) -> None:
    """Raise DataError if a file with bad rows is a table without the columns of passages, or not text in
    UTF-8. `ids` says whether passages need an id."""
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        columns = pq.read_schema(path).names
        missing = ["`id`"] if ids and "id" not in columns else []
        missing += [] if {"contents", "text"} & set(columns) else ["`contents` (or `title` and `text`)"]
        if missing:
            listed_columns = ", ".join(columns)
            raise DataError(
                f"{path} has no column {' and no '.join(missing)}, but {listed_columns}: rename them"
            )
    elif path.suffix.lower() != ".arrow":
        with open_bytes(path) as file:
            refuse_utf16(path, file, f"files whose names end in {', '.join(SUFFIXES)}")
