"""Reloads an index while it is served, by `POST /reload`.

That is an order that comes over the network, so `Reloader` bounds what it may open: the folder that it
names, and the folders of a hybrid, must lie under one folder, the root, after all links are followed. An
order that names nothing opens the same folder again, which the server's operator has chosen.

`ReloadService` carries one order out for each index at a time; `indexes.py` does the switch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from retrieval_server.errors import OutsideRootError, UserError
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.server.indexes import Indexes, LoadedIndex, Loader, ServedIndex
from retrieval_server.server.request_errors import RequestErrors
from retrieval_server.source import Source

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexLocation:
    """The folder of an index, and that of its encoder if it was moved since the build."""

    path: Path
    encoder: str | None = None


class Reloader:
    """Makes loaders, and decides which folders an order may name.

    `locations` are the indexes that the server was started with. `root` None: for each index, the folder
    that contains it.
    """

    def __init__(
        self,
        locations: Mapping[str, IndexLocation],
        open_index: Callable[[IndexLocation], Source],
        root: Path | None = None,
    ):
        self.locations = dict(locations)
        self._open = open_index
        self._roots = {
            name: (root or location.path.absolute().parent).resolve() for name, location in locations.items()
        }

    def loader(self, location: IndexLocation) -> Loader:
        """The function that opens the index there."""
        return lambda: self._open(location)

    def resolve(self, index: str, path: str | None, encoder: str | None) -> IndexLocation:
        """The location that an order means; relative paths begin at the root. Raises OutsideRootError.

        The encoder's folder is kept only with the index's: another index may have another encoder.
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
        """The path of a name below the root of an index. Raises OutsideRootError, which names the key."""
        root = self._roots[index]
        try:
            folder = (root / name).resolve()
            folder.exists()  # raises for a name that is too long for the file system
        except (OSError, ValueError, RuntimeError):  # a loop of links, a NUL
            raise OutsideRootError(f"{key}: not a path") from None
        if not folder.is_relative_to(root):
            raise OutsideRootError(f"{key}: outside {root}, the folder that /reload opens (--reload-root)")
        return folder


class ReloadService:
    """Carries out orders to reload. Without a `reloader` it refuses them all."""

    def __init__(self, indexes: Indexes, reloader: Reloader | None, refusals: RequestErrors):
        self._indexes, self._reloader, self._refusals = indexes, reloader, refusals
        self._running: set[asyncio.Task] = set()

    async def stop(self) -> None:
        """Cancel the reloads that are under way."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def reload(
        self, name: str | None, path: str | None, encoder: str | None
    ) -> tuple[str, LoadedIndex]:
        """Replace an index (None: the default) by the one at `path`; returns its name and the new index.

        Raises RequestError; the index then serves what it served before. A caller that goes away does not
        stop it.
        """
        index, _ = self._indexes.require(name)
        refused = self._refusals.refused
        if self._reloader is None or index.name not in self._reloader.locations:
            reason = f"this server cannot reload {index.name}"
            raise refused(404, "no_reload", reason, index=index.name)
        if index.reloading:
            reason = f"a reload of {index.name} is under way"
            raise refused(409, "reloading", reason, index=index.name)
        try:
            location = self._reloader.resolve(index.name, path, encoder)
        except OutsideRootError as error:
            raise refused(403, "forbidden", str(error), index=index.name) from None
        index.reloading = True
        task = asyncio.create_task(self._replace(self._reloader, index, location))
        self._running.add(task)
        task.add_done_callback(self._forget)
        try:
            return index.name, await asyncio.shield(task)
        except (UserError, OSError) as error:
            fault = str(error)
            if isinstance(error, OSError):
                fault = f"a file of it cannot be read ({error.strerror})"
            reason = f"{fault.rstrip('.')}. The old index keeps serving."
            raise refused(422, "reload_failed", reason, index=index.name) from None

    async def _replace(self, reloader: Reloader, index: ServedIndex, location: IndexLocation) -> LoadedIndex:
        """Load an index and switch to it; the outcome is counted and logged. Raises what loading raises."""
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
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # mark as seen: it was logged, and its caller may have gone


def _members(folder: Path | None) -> list[Path]:
    """The folders that a hybrid index is made of; none for another index, or a folder without one."""
    try:
        hybrid = read_manifest(folder).hybrid if folder is not None else None
    except UserError:  # opening it will say why
        return []
    return [folder / name for name in hybrid.of] if hybrid else []
