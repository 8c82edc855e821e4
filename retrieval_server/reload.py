"""Which folders ``POST /reload`` may open. It is an order that comes over the network, so it is bounded:
what it names must lie under one folder, the root, after all links are followed. An order that names nothing
opens the same place again, which the server's operator has chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from retrieval_server.indexes import Loader
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
        return Place(
            path=now.path if path is None else self._inside(index, "path", path),
            encoder=kept if encoder is None else str(self._inside(index, "encoder", encoder)),
        )

    def _inside(self, index: str, key: str, name: str) -> Path:
        root = self._roots[index]
        try:
            found = (root / name).resolve()
        except (OSError, ValueError, RuntimeError):  # a loop of links, a NUL
            raise OutsideRoot(f"{key}: not a path") from None
        if not found.is_relative_to(root):
            raise OutsideRoot(f"{key}: outside {root}, the only folder that /reload opens (--reload-root)")
        return found
