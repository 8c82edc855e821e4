"""The error of work that is kept in a folder: a run, a pipeline, a training."""

from __future__ import annotations


class RunError(RuntimeError):
    """The work cannot start or go on; the message names the key, the step or the file, and the remedy."""


class OtherServerError(RunError):
    """A server of another kind answers at the address, so that waiting does not help."""
