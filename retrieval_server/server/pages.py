"""Finds whole pages by their address, for ASearcher's `/access`.

The pages are lines of a JSONL file, `{"url": ..., "contents": ...}`, which is read once at the start. Memory
holds 16 bytes per line (a hash of the address and the offset), so that six million pages take 100 MB; the
text stays on disk, in the file, which must not change while it is served. If an address occurs in several
lines, the first one is used.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tqdm import tqdm

from retrieval_server.errors import UserError, reason_of
from retrieval_server.json_limits import read_json_line
from retrieval_server.server.request_errors import RequestErrors


class PageStore:
    """The pages of one file. `get` may be called from any thread.

    Raises UserError if the file cannot be read or, with the number of the line, if a line is not a page. With
    `progress` a terminal shows a bar.
    """

    def __init__(self, path: Path, *, progress: bool = True):
        check_pages(path, max_lines=0)
        self._path = path
        hashes, offsets = array("Q"), array("Q")
        size = path.stat().st_size
        # With None there is a bar only in a terminal, and none in a log that may be JSON.
        disable = None if progress else True
        bar = tqdm(total=size, unit="B", unit_scale=True, desc="reading pages", disable=disable)
        with _reading(path), path.open("rb") as stream, bar:
            offset = 0
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    hashes.append(_hash(_parse(line, f"{path}, line {number}")["url"]))
                    offsets.append(offset)
                offset += len(line)
                bar.update(len(line))
        file_hashes = np.frombuffer(hashes, dtype=np.uint64)
        order = np.argsort(file_hashes, kind="stable")
        self._hashes = file_hashes[order]
        self._offsets = np.frombuffer(offsets, dtype=np.uint64)[order]

    def __len__(self) -> int:
        """The number of pages in the file; a page that occurs twice counts twice."""
        return len(self._hashes)

    def get(self, url: str) -> dict[str, str] | None:
        """Return the page as `{"url", "contents"}`, or None.

        MediaWiki's `/index.php/NAME` also finds a page at `/index.php?title=NAME`. If the file was changed or
        removed meanwhile, the error is a UserError or an OSError.
        """
        page = self._find(url)
        if page is None and "/index.php/" in url:
            page = self._find(url.replace("/index.php/", "/index.php?title=", 1))
        return page

    def _find(self, url: str) -> dict[str, str] | None:
        """Return the first page with exactly this address, or None."""
        key = np.uint64(_hash(url))
        first, end = (np.searchsorted(self._hashes, key, side) for side in ("left", "right"))
        for offset in self._offsets[first:end]:
            with self._path.open("rb") as stream:
                stream.seek(int(offset))
                page = _parse(stream.readline(), str(self._path))
            if page["url"] == url:  # else another address with the same hash
                return page
        return None


class ServedPages:
    """The pages of a server, read by `load`. `path` is None for a server without pages."""

    def __init__(self, path: Path | None, request_errors: RequestErrors):
        self.path, self._request_errors = path, request_errors
        self._store: PageStore | None = None

    async def load(self) -> None:
        """Read the pages, if the server has any. Raises UserError if they cannot be read."""
        if self.path is not None:
            self._store = await asyncio.to_thread(PageStore, self.path)

    def require(self) -> PageStore:
        """Return the pages. Raises RequestError if the server has none, or has not read them yet."""
        if self.path is None:
            reason = "this server has no pages; it is started with --pages FILE"
            raise self._request_errors.counted(404, "no_pages", reason)
        if self._store is None:
            reason = "the pages are still being read"
            raise self._request_errors.counted(503, "not_ready", reason, retry_after=1)
        return self._store


def check_pages(path: Path, max_lines: int = 1000) -> None:
    """Raise UserError if the file cannot be read, or one of its first `max_lines` lines is not a page."""
    with _reading(path):
        if not path.is_file():
            raise UserError(f"--pages {path}: no such file. Give a JSONL file with 'url' and 'contents'.")
        with path.open("rb") as stream:
            for number, line in enumerate(itertools.islice(stream, max_lines), start=1):
                if line.strip():
                    _parse(line, f"{path}, line {number}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert errors of reading the file in the block to UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--pages {path}: {reason_of(error)}. Give a JSONL file with 'url' and 'contents' that this user "
            "may read."
        ) from error


def _hash(url: str) -> int:
    """Return a 64-bit hash of an address."""
    digest = hashlib.blake2b(url.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _parse(line: bytes, location: str) -> dict[str, str]:
    """Return the page of a line. Raises UserError, which names the location, if the line is not a page."""
    try:
        row = read_json_line(line)
        page = {"url": row["url"], "contents": row["contents"]}
        f"{page['url']}{page['contents']}".encode()  # fails for half a surrogate pair, which cannot be sent
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(
            f"{location}: not a JSON object with 'url' and 'contents' ({error}). Repair it."
        ) from None
    if not all(isinstance(value, str) for value in page.values()):
        raise UserError(f"{location}: 'url' and 'contents' must be strings. Repair it.")
    return page
