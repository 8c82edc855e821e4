"""Converts a folder of documents to a corpus of passages.

`index_folder` reads every text, Markdown, HTML and PDF file in a folder and its subfolders (parsers.py). It
writes `corpus.jsonl`, with a passage of about 100 words on each line:

    {"id": "guides/setup.pdf#p3.1", "title": "Setup (page 3)", "text": "...",
     "url": "guides/setup.pdf#page=3", "file": "guides/setup.pdf", "page": 3}

The retrieval server can index this corpus (retrieval_server/build_index.py), and the tool `documents`
searches it (tool.py). A passage never crosses the end of a page or a heading. `corpus.json`, next to the
corpus, describes the files from which it was made. As long as these have the same names, sizes and times, the
corpus is not made again, unless pypdf, which reads PDFs, was installed or removed since.

If files cannot be read, an error names up to twenty of them and nothing is written. With `skip_bad_files`
they are left out instead.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from array import array
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rag_r1.io.atomic_files import atomic_file
from rag_r1.io.errors import DataError, reason_of
from rag_r1.io.terminal_text import terminal_text
from rag_r1.protocols.actions import well_formed
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_lock
from rag_r1.runs.state_file import StateFile
from rag_r1.sandbox.documents import DocumentText, Section
from rag_r1.sandbox.worker_pool import LimitError
from rag_r1.tools.documents.parsers import ENDINGS, close_workers, read_ahead, read_document

logger = logging.getLogger(__name__)

#: Number of words of a passage; in Chinese and Japanese, of characters.
PASSAGE_WORDS = 100
CORPUS, MADE_FROM = "corpus.jsonl", "corpus.json"
#: To be increased when the passages of unchanged files change.
_VERSION = 4
#: Whether access rights can be checked for the effective user, which Windows cannot.
_BY_EFFECTIVE_IDS = os.access in os.supports_effective_ids
#: Most files that an error names, and most characters for each of them. After as many files that exceed the
#: reader's limits, reading is given up.
_MAX_NAMED, _MAX_CHARS = 20, 600

#: A word: one Chinese or Japanese character, or a run of other characters, which is cut after 80.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[^\s\u3040-\u30ff\u3400-\u9fff]{1,80}|\S"
)


def index_folder(
    folder: Path,
    out: Path,
    *,
    run: Path | None = None,
    progress: bool = True,
    skip_bad_files: bool = False,
) -> Path:
    """Write the passages of the documents in `folder` to `out`/corpus.jsonl; returns that path.

    `out` is created if necessary. Files in the folder `run`, by default `out`, are no documents, so that it
    may be inside `folder`. If the folder has not changed since the corpus was written, the corpus is
    left as it is. With `progress`, a bar on stderr counts the files. If several processes do this at the same
    time, they wait for one another.

    Raises RunError if there is nothing to read, or if files cannot be read; with `skip_bad_files` these are
    logged and left out. Raises OSError if `out` cannot be used or `folder` cannot be read.
    """
    folder, out = Path(folder), Path(out)
    files = document_files(folder, run or out)
    made_from = {
        "version": _VERSION,
        "skip_bad_files": skip_bad_files,
        "pypdf": find_spec("pypdf") is not None,
        "files": _fingerprint(folder, files),
    }
    corpus, state = out / CORPUS, StateFile(out / MADE_FROM, made_from)
    with hold_lock(out, None, name=None):
        if corpus.is_file() and state.read(dict) is not None:
            return corpus
        state.remove()
        with atomic_file(corpus) as part:
            _write_rows(folder, files, part, progress, skip_bad_files)
        state.write()
    return corpus


def count_passages(
    folder: Path, run: Path | None = None, *, progress: bool = True, skip_bad_files: bool = False
) -> int:
    """Return the number of passages that `index_folder` would write. Raises RunError as it does, and OSError
    if the folder cannot be read."""
    files = document_files(folder, run)
    faults: list[str] = []
    passages = sum(map(len, _passages_by_file(folder, files, progress, faults)))
    _check_result(folder, files, faults, passages, skip_bad_files)
    return passages


def other_files(folder: Path, run: Path) -> list[Path]:
    """Return the files that are not read because of their type, without hidden ones and those in the folder
    `run`, sorted by name."""
    paths = _visible_paths(folder, run)
    return [path for path in paths if path.is_file() and path.suffix.lower() not in ENDINGS]


def _visible_paths(folder: Path, run: Path | None) -> Iterator[Path]:
    """Yield the folder and all paths below it, without hidden ones and without the folder `run`, if that is
    inside. Raises RunError for a folder that may not be entered, which rglob would silently skip."""
    # realpath, since Path.resolve raises RuntimeError for a link to itself
    left_out = None if run is None else Path(os.path.realpath(run))
    if left_out is not None and Path(os.path.realpath(folder)) not in left_out.parents:
        left_out = None
    for path in (folder, *sorted(folder.rglob("*"))):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if left_out is not None and Path(os.path.realpath(path)).is_relative_to(left_out):
            continue
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK, effective_ids=_BY_EFFECTIVE_IDS):
            raise RunError(f"the folder {path} cannot be read: check its rights, or give another folder")
        yield path


def document_files(folder: Path, run: Path | None = None) -> list[Path]:
    """Return the files of a type that can be read, sorted by name, without hidden ones, those in the folder
    `run`, and links that lead out of the folder. A broken link is included, so that reading it names it.
    Raises RunError if there are no such files, if `folder` is not a folder, or if a folder in it may not be
    entered."""
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise RunError(f"{folder} {problem}: give the folder with the documents")
    root = folder.resolve()
    paths = [
        path
        for path in _visible_paths(folder, run)
        if path.suffix.lower() in ENDINGS
        and (_is_broken_link(path) or (path.is_file() and path.resolve().is_relative_to(root)))
    ]
    if not paths:
        raise RunError(f"{folder}: no file in it ends in one of {', '.join(ENDINGS)}: give another folder")
    return paths


def _is_broken_link(path: Path) -> bool:
    """Return whether a path is a link whose target does not exist."""
    return path.is_symlink() and not path.exists()


def passages_of(name: str, path: Path, document: DocumentText | None = None) -> Iterator[dict[str, Any]]:
    """Yield the passages of a file as rows of a corpus. `name` is its path in the corpus, and `document` its
    text, if it was read already. Raises DataError or OSError if the file cannot be read."""
    document = document or read_document(path)
    title = document.title or path.stem
    numbers: dict[int | None, int] = {}  # of the last passage, by page
    for section in document.sections:
        for text in split_words(section.text):
            numbers[section.page] = number = numbers.get(section.page, 0) + 1
            page = "" if section.page is None else f"p{section.page}."
            row = {
                "id": f"{name}#{page}{number}",
                "title": _passage_title(title, section),
                "text": text,
                "url": name if section.page is None else f"{name}#page={section.page}",
                "file": name,
            }
            yield row if section.page is None else {**row, "page": section.page}


def split_words(text: str, words: int = PASSAGE_WORDS) -> list[str]:
    """Cut a text into pieces of equal length, of about `words` words each; [] for a text without words. White
    space becomes single spaces, and nothing else is lost."""
    starts = array("Q", (match.start() for match in _WORD.finditer(text)))
    if not starts:
        return []
    n_pieces = max(1, round(len(starts) / words))
    cuts = [starts[len(starts) * i // n_pieces] for i in range(n_pieces)]
    return [" ".join(text[start:end].split()) for start, end in zip(cuts, [*cuts[1:], None], strict=True)]


def _passage_title(title: str, section: Section) -> str:
    """Return the title of the document together with the page or the heading of the section."""
    if section.page is not None:
        return f"{title} (page {section.page})"
    return f"{title}: {section.heading}" if section.heading not in ("", title) else title


def _write_rows(folder: Path, files: list[Path], part: Path, progress: bool, skip_bad_files: bool) -> None:
    """Write the passages of the files to `part`. Raises RunError as `index_folder` does."""
    faults: list[str] = []
    passages = 0
    with part.open("w", encoding="utf-8") as stream:
        for rows in _passages_by_file(folder, files, progress, faults):
            passages += len(rows)
            for row in rows:
                stream.write(well_formed(json.dumps(row, ensure_ascii=False)) + "\n")
    _check_result(folder, files, faults, passages, skip_bad_files)
    for fault in faults:
        logger.warning("left out: %s", fault)


def _check_result(
    folder: Path, files: list[Path], faults: list[str], passages: int, skip_bad_files: bool
) -> None:
    """Raise RunError if there is no text, or if files cannot be read and may not be left out."""
    if faults and not skip_bad_files:
        suffix = f"\n  and {len(faults) - _MAX_NAMED} more" if len(faults) > _MAX_NAMED else ""
        lines = "".join(f"\n  {fault}" for fault in faults[:_MAX_NAMED])
        raise RunError(
            f"{folder}: {len(faults)} of {len(files)} files cannot be read; repair or remove them, or "
            "leave them out with skip_bad_files (in a command: --skip-bad-files; in `rag-r1 own`: "
            f"documents.skip_bad_files=true):{lines}{suffix}"
        )
    if not passages:
        subject = "its only file holds" if len(files) == 1 else f"its {len(files)} files hold"
        raise RunError(f"{folder}: {subject} no text, so there is no passage: give another folder")


def _passages_by_file(
    folder: Path, files: list[Path], progress: bool, faults: list[str]
) -> Iterator[list[dict[str, Any]]]:
    """Yield the passages of each file. For a file that cannot be read, a line is added to `faults`. Raises
    RunError after twenty files that exceed the reader's limits, since the whole folder would take too
    long."""
    n_limits = 0
    bar = tqdm(total=len(files), desc="reading documents", unit="file", disable=not progress)
    try:
        with bar, closing(read_ahead(files)) as documents:
            for pending in documents:
                bar.update()
                name = _corpus_name(pending.path.relative_to(folder))
                try:
                    rows = list(passages_of(name, pending.path, pending.document()))
                except (DataError, OSError) as error:
                    faults.append(terminal_text(f"{name}: {reason_of(error)}", _MAX_CHARS))
                    n_limits += isinstance(error.__cause__, LimitError)
                    if n_limits == _MAX_NAMED:
                        lines = "".join(f"\n  {fault}" for fault in faults[-_MAX_NAMED:])
                        raise RunError(
                            f"{folder}: reading was given up after {n_limits} files that exceed its limits "
                            f"of time or memory; remove them:{lines}"
                        ) from None
                    continue
                yield rows
    finally:
        close_workers()


def _fingerprint(folder: Path, files: list[Path]) -> str:
    """Return a hash of the names, sizes and times of the files."""
    digest = hashlib.sha256()
    for path in files:
        name = _corpus_name(path.relative_to(folder))
        status = path.stat(follow_symlinks=not _is_broken_link(path))
        digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _corpus_name(path: Path) -> str:
    """Return a relative path as the corpus writes it, with escapes for bytes that are not UTF-8."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")
