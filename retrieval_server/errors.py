"""Every way in which building or opening what is served can fail, each with a message that ends in the
remedy.

The scripts print the message without a traceback and exit with status 2. Anything else that is raised is a
bug.
"""

from __future__ import annotations


class RetrievalServerError(Exception):
    """Base of the errors that a user can repair; the message says how."""


class CorpusError(RetrievalServerError):
    """A corpus file cannot be read: unknown format, malformed row, duplicate id, no passage at all."""


class EncoderError(RetrievalServerError):
    """An encoder cannot be found, or its folder contradicts the settings asked for."""


class BuildError(RetrievalServerError):
    """An index cannot be built as asked: the target exists, another build runs, an unknown factory string."""


class IndexFolderError(RetrievalServerError):
    """A folder is not a finished index, or its parts do not fit each other or the encoder."""


class WebEngineError(RetrievalServerError):
    """A web search engine cannot be asked as configured: no key, no address, a parameter that is taken."""


class RecordingError(RetrievalServerError):
    """A recording of web answers cannot be read or written, or is not what it was said to be."""


class RayError(RetrievalServerError):
    """Ray Serve is not installed, or a part of an index does not start in it."""
