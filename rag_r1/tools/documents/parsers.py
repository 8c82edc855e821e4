"""Reads documents as sections of text: plain text, Markdown (markdown.py), HTML and PDF.

The extension of a file gives its format. A section is a part of the text that has a place of its own in the
document, so that no passage should cross its end: a page of a PDF, the text under a heading of a Markdown or
HTML file, or a plain text as a whole. Files are data: scripts, styles and comments in HTML are left out,
nothing is fetched, and no markup survives.

HTML and PDF are read by a worker with limits of CPU time and memory (rag_r1/sandbox/documents.py), since even
a small file can take forever to parse. Workers read several files ahead (`read_ahead`), and small files in
batches. Plain text and Markdown are harmless in this respect and are read here.

A file that cannot be read raises `DataError`, which says why and what to do. PDFs need pypdf
(`pip install 'rag-r1[documents]'`). Scanned pages have no text unless OCR was run over them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import starmap
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

#: The processes that read HTML and PDF.
workers = WorkerPool()


def read_document(path: Path) -> DocumentText:
    """Return the text of a file. Raises DataError and OSError as `PendingDocument.document` does."""
    return PendingDocument(path).document()


def read_ahead(paths: Sequence[Path]) -> Iterator[PendingDocument]:
    """Yield the documents of these files, in order, while workers read the next ones."""
    batches: deque[_ReadBatch] = deque()
    try:
        for start in range(0, len(paths), _BATCH_FILES):
            batches.append(_ReadBatch(paths[start : start + _BATCH_FILES]))
            for batch in batches:
                batch.begin()
            if len(batches) == _MAX_BATCHES:
                yield from batches[0].documents
                batches.popleft()
        while batches:
            yield from batches[0].documents
            batches.popleft()
            for batch in batches:
                batch.begin()
    finally:
        for batch in batches:
            batch.cancel()


class _JobAnswer(NamedTuple):
    """What a job returned for one file."""

    #: "" if the file was read, `OSError`, or the name of another exception's class.
    error_kind: str
    #: The title and the sections as sandbox/documents.py returns them, or the exception's message.
    value: Any


class _ReadBatch:
    """Consecutive files, of which a worker reads the small ones in one job.

    If a limit ends the job, each of them is read alone, within its own limits. The job is first not started
    (`_job` and `_answers` are None), then running (`_job`), and at last ended (`_answers`).
    """

    def __init__(self, paths: Sequence[Path]):
        self.documents = [PendingDocument(path, self) for path in paths]
        #: The HTML and PDF files of at most _SMALL_BYTES.
        self._small: list[PendingDocument] = []
        self._job: JobHandle | None = None
        #: The answers for the small files; empty if a limit ended the job.
        self._answers: dict[PendingDocument, _JobAnswer] | None = None
        size = 0
        for pending in self.documents:
            if pending.ending in _PARSED_ENDINGS:
                with suppress(OSError):
                    file_size = pending.path.stat().st_size
                    if file_size <= _SMALL_BYTES:
                        self._small.append(pending)
                        size += file_size
        self._limits = _limits(size)

    def begin(self) -> None:
        """Start the job for the small files, if there are any and a worker is free. If none can be started,
        `answer_for` tries again, and raises the error."""
        if self._small and self._job is None and self._answers is None:
            with suppress(OSError, RuntimeError):
                self._start(wait=False)

    def answer_for(self, pending: PendingDocument) -> _JobAnswer | None:
        """Return the answer of the job for a file, or None if the job did not read it. Raises OSError if no
        worker can be started, and RuntimeError if the interpreter shuts down."""
        if self._answers is None and pending in self._small:
            if self._job is None:
                self._start(wait=True)
            job, self._job, self._answers = self._job, None, {}
            assert job is not None  # `_start` has set it
            with suppress(LimitError, JobError):
                self._answers = dict(zip(self._small, starmap(_JobAnswer, job.result()), strict=True))
        return (self._answers or {}).get(pending)

    def cancel(self) -> None:
        """End the job, if it was started."""
        if self._job is not None:
            self._job.cancel()

    def _start(self, *, wait: bool) -> None:
        """Start the job. If all workers are busy, wait for one, or leave `_job` None."""
        files = [[path_argument(pending.path), pending.ending] for pending in self._small]
        start = workers.start if wait else workers.try_start
        self._job = start("rag_r1.sandbox.documents:read_all", [files], self._limits)


class PendingDocument:
    """The file `path`, which is read when `document` is called, or earlier together with its batch. `ending`
    is its extension in lower case."""

    def __init__(self, path: Path, batch: _ReadBatch | None = None):
        self.path, self.ending, self._batch = path, path.suffix.lower(), batch

    def document(self) -> DocumentText:
        """Return the text of the file. Raises DataError if it cannot be read, OSError if it cannot be opened
        or no worker can be started, and RuntimeError if the interpreter shuts down."""
        if self.ending in _PARSED_ENDINGS:
            return self._parsed()
        if self.ending not in ENDINGS:
            raise DataError(f"its name must end in one of {', '.join(ENDINGS)}")
        if self._size() > 4 * (MAX_CHARS + 1):  # more than UTF-8 or UTF-16 need
            raise DataError(f"its text has more than {MAX_CHARS:,} characters: split it")
        document = within_limits(DocumentText("", [Section(decode_text(self.path.read_bytes()))]))
        return document if self.ending == ".txt" else markdown_sections(document.sections[0].text)

    def _size(self) -> int:
        """Return the size of the file in bytes. Raises DataError if it is too large."""
        size = self.path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise DataError(f"it has more than {MAX_FILE_BYTES >> 20} MiB: split it")
        return size

    def _parsed(self) -> DocumentText:
        """Return the text of an HTML or PDF file. Raises errors as `document` does."""
        answer = None if self._batch is None else self._batch.answer_for(self)
        answer = answer or self._read_alone()
        if answer.error_kind:
            raise OSError(answer.value) if answer.error_kind == "OSError" else DataError(answer.value)
        title, sections = answer.value
        return DocumentText(title, [Section(*section) for section in sections])

    def _read_alone(self) -> _JobAnswer:
        """Have a worker read the file in a job of its own. Raises DataError if a limit ends the job."""
        job, limits = [path_argument(self.path), self.ending], _limits(self._size())
        try:
            return _JobAnswer("", workers.call("rag_r1.sandbox.documents:read", job, limits))
        except LimitError as error:
            raise DataError(f"{error}: split it or save it in another format") from error
        except JobError as error:
            return _JobAnswer(error.kind, str(error))


def _limits(size: int) -> JobLimits:
    """Return the limits of a job that reads files with `size` bytes in total."""
    return JobLimits(CPU_S + CPU_S_PER_MIB * size / (1 << 20), MEMORY_BYTES + MEMORY_BYTES_PER_BYTE * size)
