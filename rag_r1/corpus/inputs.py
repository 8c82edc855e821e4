"""Reads and checks the input files of the commands that work on a corpus, before the hour that these take.

All questions are read. Of each corpus file only the first row is read, which is enough to detect a missing
column, a wrong separator or a broken file. All problems are reported together
(rag_r1/runs/start_checks.py). `passages_of` then reads a corpus for commands that accept no bad rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rag_r1.corpus.questions import CorpusQuestions, read_questions
from rag_r1.corpus.reader import START, SUFFIXES, Corpus, CorpusPosition, Passage
from rag_r1.data.files.row_files import open_bytes, refuse_utf16
from rag_r1.io.errors import DataError
from rag_r1.runs.start_checks import StartChecks

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
    """Yield each passage with its file. Raises DataError, with file and line, if a row is not a passage."""
    for row, position in corpus.rows(progress=progress):
        if isinstance(row, ValueError):
            raise DataError(f"{corpus.location(position)}: {row}: repair the corpus (`rag-r1 corpus check`)")
        yield row, corpus.files[position.file]


def check_first_rows(corpus: Corpus, skip_bad_rows: bool | None = None) -> None:
    """Check the first row of each file. Raises DataError if the files have no rows at all or, unless
    `skip_bad_rows` says to leave such rows out, if a first row is not a passage. `skip_bad_rows` is None for
    a command without this flag, which the message then does not name."""
    has_rows = not corpus.files  # there is nothing to check without a file
    for index in range(len(corpus.files)):
        # After a file without rows, this is the first row of a later one.
        row, position = next(corpus.rows(CorpusPosition(index), progress=False), (None, START))
        if isinstance(row, ValueError) and not skip_bad_rows:
            with open_bytes(path := corpus.files[position.file]) as file:
                refuse_utf16(path, file, f"files whose names end in {', '.join(SUFFIXES)}")
            flag = "" if skip_bad_rows is None else ", or leave such rows out with --skip-bad-rows"
            raise DataError(f"{corpus.location(position)}: {row}; {_ROW}: correct the file{flag}")
        has_rows = has_rows or row is not None
    if not has_rows:
        raise DataError(f"{', '.join(map(str, corpus.files))}: no passage in it; {_ROW}: give another file")
