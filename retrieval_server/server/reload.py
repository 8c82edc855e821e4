"""Which folders ``POST /reload`` may open. It is an order that comes over the network, so it is bounded:
what it names, and what a hybrid that it names is made of, must lie under one folder, the root, after all
links are followed. An order that names nothing opens the same place again, which the server's operator has
chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from retrieval_server.errors import IndexFolderError
from retrieval_server.folder.manifest import read_manifest
from retrieval_server.server.indexes import Loader
from retrieval_server.sources import Source


class OutsideRoot(Exception):
    """A folder that ``/reload`` may not open; the message says which it may."""


@dataclass(frozen=True)
class Place:
    """Where an index lies, and its encoder if that was moved since the build."""

    path: Path
    encoder: str | None = None


class Reloader:
    """Makes loaders. ``places`` are the indexes as the server was started; ``root`` None stands for the
    folder that holds the index in question.
    """

    def __init__(
        self, places: Mapping[str, Place], open_index: Callable[[Place], Source], root: Path | None = None
    ):
        self.places = dict(places)
        self._open = open_index
        self._roots = {
            name: (root or place.path.absolute().parent).resolve() for name, place in places.items()
        }

    def loader(self, place: Place) -> Loader:
        return lambda: self._open(place)

    def resolve(self, index: str, path: str | None, encoder: str | None) -> Place:
        """The place that an order means; relative paths begin at the root. Raises OutsideRoot.

        The encoder's place is kept only while the index's is: another index may have another encoder.
        """
        now = self.places[index]
        kept = now.encoder if path is None else None
        found = None if path is None else self._inside(index, "path", path)
        for part in _parts(found):
            self._inside(index, "path", str(part))
        return Place(
            path=found or now.path,
            encoder=kept if encoder is None else str(self._inside(index, "encoder", encoder)),
        )

    def _inside(self, index: str, key: str, name: str) -> Path:
        root = self._roots[index]
        try:
            found = (root / name).resolve()
            found.exists()  # raises for a name that is too long for the file system
        except (OSError, ValueError, RuntimeError):  # a loop of links, a NUL
            raise OutsideRoot(f"{key}: not a path") from None
        if not found.is_relative_to(root):
            raise OutsideRoot(f"{key}: outside {root}, the only folder that /reload opens (--reload-root)")
        return found


def _parts(folder: Path | None) -> list[Path]:
    """The folders that a hybrid index is made of; none for another index, and for what is no index at all."""
    try:
        hybrid = read_manifest(folder).hybrid if folder is not None else None
    except IndexFolderError:  # opening it will say why
        return []
    return [folder / name for name in hybrid.of] if hybrid else []
