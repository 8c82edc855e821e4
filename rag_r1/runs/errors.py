"""The errors of resumable work in a folder: a run, a pipeline, a training."""

from __future__ import annotations


class RunError(RuntimeError):
    """The work cannot start or continue; the message names the key, step or file concerned, and the
    remedy."""


class OtherServerError(RunError):
    """A server of another kind answers at the address, so that waiting for it is useless."""
