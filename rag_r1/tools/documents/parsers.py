"""Reads documents as sections of text: plain text, Markdown (markdown.py), HTML and PDF.

The extension of a file gives its format. A section is a part of the text that has a place of its own in the
document, so that no passage should cross its end: a page of a PDF, the text under a heading of a Markdown or
HTML file, or a plain text as a whole. Files are data: scripts, styles and comments in HTML are left out,
nothing is fetched, and no markup survives.

HTML and PDF are read by a worker with limits of CPU time and memory (rag_r1/sandbox/documents.py), since even
a small file can take forever to parse. `read_ahead` has small files read ahead in batches. Plain text and
Markdown are harmless in this respect and are read here.

A file that cannot be read raises `DataError`, which says why and what to do. PDFs need pypdf
(`pip install 'rag-r1[documents]'`). Scanned pages have no text unless OCR was run over them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice, starmap
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.io.errors import DataError
from rag_r1.sandbox.documents import MAX_CHARS, DocumentText, Section, decode_text, within_limits
from rag_r1.sandbox.job_paths import path_argument
from rag_r1.sandbox.worker_pool import JobError, JobHandle, JobLimits, LimitError, WorkerPool
from rag_r1.tools.documents.markdown import markdown_sections

#: Extensions of the files that are read; workers read those in _PARSED_ENDINGS.
ENDINGS = (".txt", ".md", ".markdown", ".html", ".htm", ".pdf")
_PARSED_ENDINGS = (".html", ".htm", ".pdf")

#: Largest file that is read, in bytes, since texts are kept in memory as a whole.
MAX_FILE_BYTES = 256 << 20
#: Seconds of CPU time for a file that a worker reads: a base, and some for each MiB. pypdf reads about 20
#: pages a second.
CPU_S, CPU_S_PER_MIB = 10.0, 10.0
#: Bytes of address space for a file that a worker reads: a base, and some for each byte of the file.
MEMORY_BYTES, MEMORY_BYTES_PER_BYTE = 1 << 30, 8

#: Number of files in a batch, most bytes of a file that is read together with others, and most batches that
#: are read ahead.
_BATCH_FILES, _SMALL_BYTES, _MAX_BATCHES = 32, 64 << 10, 4

#: The processes that read HTML and PDF files, alone or in a batch. These are two pools, since a thread that
#: waits for a worker may hold none of the same pool: batches hold theirs while they read ahead, and no thread
#: waits for them.
file_workers, batch_workers = WorkerPool(), WorkerPool()


def close_workers() -> None:
    """End all idle workers. Later reading starts new ones."""
    file_workers.close()
    batch_workers.close()


def read_document(path: Path) -> DocumentText:
    """Return the text of a file. Raises errors as `PendingDocument.document` does."""
    return PendingDocument(path).document()


def read_ahead(paths: Sequence[Path]) -> Iterator[PendingDocument]:
    """Yield the documents of these files, in order, while workers read the next ones. Each may be read at any
    time, also after the iteration."""
    starts = iter(range(0, len(paths), _BATCH_FILES))
    batches: deque[_Batch] = deque()
    try:
        while True:
            for start in islice(starts, _MAX_BATCHES - len(batches)):
                batches.append(_Batch(paths[start : start + _BATCH_FILES]))
            if not batches:
                return
            for batch in batches:
                batch.begin()
            for path in batches[0].paths:
                yield PendingDocument(path, batches[0])
            batches.popleft().cancel()
    finally:
        for batch in batches:
            batch.cancel()


class _JobAnswer(NamedTuple):
    """What a job returned for one file."""

    #: "" if the file was read, `OSError`, or the name of another exception's class.
    error_kind: str
    #: The title and the sections as sandbox/documents.py returns them, or the exception's message.
    value: Any


class _Batch:
    """Consecutive files, of which a worker reads the small HTML and PDF files in one job.

    The job is optional: there is none if no worker is free, and it has no answers if a limit ends it. Files
    without an answer are to be read alone, within their own limits.
    """

    def __init__(self, paths: Sequence[Path]):
        self.paths = paths
        sizes: dict[Path, int] = {}
        for path in paths:
            if _ending(path) in _PARSED_ENDINGS:
                with suppress(OSError):  # raised again when the file is read alone
                    if (size := path.stat().st_size) <= _SMALL_BYTES:
                        sizes[path] = size
        self._small, self._limits = list(sizes), _limits(sum(sizes.values()))
        #: The job, from its start until its answers are taken or it is cancelled.
        self._job: JobHandle | None = None
        self._answers: dict[Path, _JobAnswer] = {}

    def begin(self) -> None:
        """Start the job, unless it runs, there are no small files, or no worker is free. To be called before
        the first `answer_for`."""
        if self._small and self._job is None:
            files = [_read_arguments(path) for path in self._small]
            with suppress(OSError, RuntimeError):  # no worker can be started; reading a file alone reports it
                self._job = batch_workers.try_start(
                    "rag_r1.sandbox.documents:read_all", [files], self._limits
                )

    def answer_for(self, path: Path) -> _JobAnswer | None:
        """Return the job's answer for a file, for which it waits, or None if there is none."""
        if self._job is not None and path in self._small:
            job, self._job = self._job, None
            with suppress(LimitError, JobError):
                self._answers = dict(zip(self._small, starmap(_JobAnswer, job.result()), strict=True))
        return self._answers.get(path)

    def cancel(self) -> None:
        """End the job, if it runs."""
        if self._job is not None:
            self._job.cancel()
            self._job = None


class PendingDocument:
    """The file `path`, which is read when `document` is called, or earlier together with its batch."""

    def __init__(self, path: Path, batch: _Batch | None = None):
        self.path, self._batch = path, batch

    def document(self) -> DocumentText:
        """Return the text of the file. Raises DataError if it cannot be read, OSError if it cannot be opened
        or no worker can be started, and RuntimeError if the interpreter shuts down."""
        ending = _ending(self.path)
        if ending in _PARSED_ENDINGS:
            return self._parsed()
        if ending not in ENDINGS:
            raise DataError(f"its name must end in one of {', '.join(ENDINGS)}")
        if self._size() > 4 * (MAX_CHARS + 1):  # more than UTF-8 or UTF-16 need
            raise DataError(f"its text has more than {MAX_CHARS:,} characters: split it")
        document = within_limits(DocumentText("", [Section(decode_text(self.path.read_bytes()))]))
        return document if ending == ".txt" else markdown_sections(document.sections[0].text)

    def _size(self) -> int:
        """Return the size of the file in bytes. Raises DataError if it is too large."""
        size = self.path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise DataError(f"it has more than {MAX_FILE_BYTES >> 20} MiB: split it")
        return size

    def _parsed(self) -> DocumentText:
        """Return the text of an HTML or PDF file. Raises errors as `document` does."""
        answer = None if self._batch is None else self._batch.answer_for(self.path)
        answer = answer or self._read_alone()
        if answer.error_kind:
            raise OSError(answer.value) if answer.error_kind == "OSError" else DataError(answer.value)
        title, sections = answer.value
        return DocumentText(title, [Section(*section) for section in sections])

    def _read_alone(self) -> _JobAnswer:
        """Have a worker read the file in a job of its own. Raises DataError if a limit ends the job."""
        arguments, limits = _read_arguments(self.path), _limits(self._size())
        try:
            return _JobAnswer("", file_workers.call("rag_r1.sandbox.documents:read", arguments, limits))
        except LimitError as error:
            raise DataError(f"{error}: split it or save it in another format") from error
        except JobError as error:
            return _JobAnswer(error.kind, str(error))


def _ending(path: Path) -> str:
    """Return the extension of a file in lower case."""
    return path.suffix.lower()


def _read_arguments(path: Path) -> list[str]:
    """Return the arguments of the job `read` for a file."""
    return [path_argument(path), _ending(path)]


def _limits(size: int) -> JobLimits:
    """Return the limits of a job that reads files with `size` bytes in total."""
    return JobLimits(CPU_S + CPU_S_PER_MIB * size / (1 << 20), MEMORY_BYTES + MEMORY_BYTES_PER_BYTE * size)
