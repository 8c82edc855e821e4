"""Reloads an index while it is served, for `POST /reload`.

A reload is requested over the network, so `Reloader` limits what it may open: after all links are followed,
the requested folder, and those of the members of a hybrid index, must lie below one folder, the root. A
request that names no folder opens the current one again, which the server's operator has chosen.

`ReloadService` runs at most one reload per index at a time; `indexes.py` switches to the new index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from retrieval_server.errors import OutsideRootError, UserError, reason_of
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.server.indexes import Indexes, LoadedIndex, Loader, ServedIndex
from retrieval_server.server.request_errors import RequestErrors
from retrieval_server.source import Source

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexLocation:
    """Where an index and its encoder are."""

    path: Path
    #: The folder of the encoder, if it was moved since the build.
    encoder: str | None = None


class Reloader:
    """Creates loaders, and decides which folders a request may name.

    `locations` are the indexes with which the server was started. Without a `root`, each index has the folder
    that contains it as its root.
    """

    def __init__(
        self,
        locations: Mapping[str, IndexLocation],
        open_index: Callable[[IndexLocation], Source],
        root: Path | None = None,
    ):
        #: Where each index is now, by its name; a reload changes it.
        self.locations = dict(locations)
        self._open = open_index
        self._roots = {
            name: (root or location.path.absolute().parent).resolve() for name, location in locations.items()
        }

    def loader(self, location: IndexLocation) -> Loader:
        """Return a function that opens the index at this location."""
        return lambda: self._open(location)

    def resolve(self, index: str, path: str | None, encoder: str | None) -> IndexLocation:
        """Return the location that a request names. Relative paths start at the root.

        The current encoder folder is kept only if the request names no `path`, since another index may have
        another encoder. Raises OutsideRootError.
        """
        current = self.locations[index]
        kept_encoder = current.encoder if path is None else None
        folder = None if path is None else self._path_inside(index, "path", path)
        for member in _members(folder):
            self._path_inside(index, "path", str(member))
        return IndexLocation(
            path=folder or current.path,
            encoder=kept_encoder if encoder is None else str(self._path_inside(index, "encoder", encoder)),
        )

    def _path_inside(self, index: str, key: str, name: str) -> Path:
        """Return the path that `name` means below the root of an index.

        Raises OutsideRootError, which names the `key` of the request, for any other path.
        """
        root = self._roots[index]
        try:
            folder = (root / name).resolve()
            folder.exists()  # raises for a name that is too long for the file system
        except (OSError, ValueError, RuntimeError):  # such as a loop of links or a NUL
            raise OutsideRootError(f"{key}: not a path") from None
        if not folder.is_relative_to(root):
            raise OutsideRootError(f"{key}: outside {root}, the folder that /reload opens (--reload-root)")
        return folder


class ReloadService:
    """Carries out requests to reload an index. Without a `reloader` it refuses all of them."""

    def __init__(self, indexes: Indexes, reloader: Reloader | None, request_errors: RequestErrors):
        self._indexes, self._reloader, self._request_errors = indexes, reloader, request_errors
        self._running: set[asyncio.Task] = set()

    async def stop(self) -> None:
        """Cancel the reloads that are under way."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def reload(
        self, name: str | None, path: str | None, encoder: str | None
    ) -> tuple[str, LoadedIndex]:
        """Replace an index (None: the default) by the one at `path`. Returns its name and the new index.

        The reload continues if the caller is cancelled. Raises RequestError if it is refused, or if loading
        fails with UserError or OSError, and passes on other errors of loading. The old index is then still
        served.
        """
        index, _ = self._indexes.require(name)
        counted = self._request_errors.counted
        if self._reloader is None or index.name not in self._reloader.locations:
            reason = f"this server cannot reload {index.name}"
            raise counted(404, "no_reload", reason, index=index.name)
        if index.reloading:
            reason = f"a reload of {index.name} is under way"
            raise counted(409, "reloading", reason, index=index.name)
        try:
            location = self._reloader.resolve(index.name, path, encoder)
        except OutsideRootError as error:
            raise counted(403, "forbidden", str(error), index=index.name) from None
        index.reloading = True
        task = asyncio.create_task(self._replace(self._reloader, index, location))
        self._running.add(task)
        task.add_done_callback(self._forget)
        try:
            return index.name, await asyncio.shield(task)
        except (UserError, OSError) as error:
            fault = str(error)
            if isinstance(error, OSError):
                fault = f"a file of it cannot be read ({reason_of(error)})"
            reason = f"{fault.rstrip('.')}. The old index keeps serving."
            raise counted(422, "reload_failed", reason, index=index.name) from None

    async def _replace(self, reloader: Reloader, index: ServedIndex, location: IndexLocation) -> LoadedIndex:
        """Load an index, switch to it, and count and log the outcome. Passes on errors of loading."""
        try:
            serving = await index.load(reloader.loader(location))
        except Exception as error:
            index.metrics.reloaded("failed")
            trace = None if isinstance(error, UserError) else error
            log.error("reload of %s failed: %s", index.name, error, exc_info=trace)
            raise
        else:
            index.metrics.reloaded("done")
            reloader.locations[index.name] = location
            log.info("index %s is now version %d", index.name, serving.version)
            return serving
        finally:
            index.reloading = False

    def _forget(self, task: asyncio.Task) -> None:
        """Remove a reload that has ended, whether or not its caller still waits for it."""
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: it was logged, and its caller may be gone


def _members(folder: Path | None) -> list[Path]:
    """Return the folders of a hybrid index's members; an empty list for any other folder."""
    try:
        hybrid = read_manifest(folder).hybrid if folder is not None else None
    except UserError:  # opening the index reports it
        return []
    return [folder / name for name in hybrid.of] if hybrid else []
