"""The ways in which building or opening an index can fail; every message ends with the remedy.

The scripts print the message without a traceback and exit with status 2. Any other exception is a bug.
"""

from __future__ import annotations


class RetrievalServerError(Exception):
    """Base of the errors that a user can repair; the message tells how."""


class CorpusError(RetrievalServerError):
    """A corpus file cannot be read: unknown format, malformed row, duplicate id, no passage at all."""


class EncoderError(RetrievalServerError):
    """An encoder cannot be found, or its folder contradicts the settings asked for."""


class BuildError(RetrievalServerError):
    """An index cannot be built as asked: the target exists, another build runs, an unknown factory string."""


class IndexFolderError(RetrievalServerError):
    """A folder is not a finished index, or its parts do not fit each other or the encoder."""


class WebEngineError(RetrievalServerError):
    """A web search engine cannot be used as configured: no key, no address, a reserved parameter."""


class RecordingError(RetrievalServerError):
    """A recording of web answers cannot be read or written, or is not a recording."""


class RayError(RetrievalServerError):
    """Ray Serve is not installed, or an encoder or shard does not start in it."""
