"""What the infrastructure does wrong, and what an episode does about it.

A failure is no answer of the policy's. It is typed where the episode calls something outside of itself (the
engine, the searcher; loop.py), tried again in place as often as the policy says, and, if it stays, recorded
once in the trajectory. Nothing of the trajectory is lost by a retry: a failed call has added no token to the
ledger, so the call is made again from the same context, in the same turn. A codec is not asked again: it
would say the same.

What the trainer does with a trajectory that has failures follows from their kinds: those in `mask` keep it
out of the loss and out of its group's baseline (see plugin/sampler.py); others leave it in. An episode whose
failure will be masked ends there and then, since nothing after it would be trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

#: retriever: the search engine gave no answer; tool: a tool of one's own failed; engine: a generation was
#: aborted, raised, took too long or cannot be true (ids outside the vocabulary, NaN log-probs); judge: a
#: reward term could not be judged; row: the data set's row could not be used; error: a fault in code;
#: budget: the policy ran out of turns or tokens (not the infrastructure's doing; masking it is DAPO's
#: overlong filtering).
KINDS = ("retriever", "tool", "engine", "judge", "row", "error", "budget")
_MASKED = ("retriever", "tool", "engine", "judge", "row", "error")


@dataclass(frozen=True)
class FailureNote:
    """One failure that no retry mended: its kind, the turn (from 0) in which it happened, and words for
    people."""

    kind: str
    turn: int
    detail: str = ""


@dataclass(frozen=True)
class FailurePolicy:
    """The keys under `rag_r1.failures`. The default shows a failed search to the policy and goes on."""

    #: Times that a failed call of the engine or of the searcher is made again.
    retries: int = 0
    #: Seconds before the first of them; doubles each time.
    wait_s: float = 1.0
    #: Seconds that a search may take, its own retries included, before it counts as failed: a tool that hangs
    #: would hang the run. None: no limit.
    tool_timeout_s: float | None = 300.0
    #: Seconds that a generation may take before it counts as failed; None: no limit. A turn may rightly wait
    #: for its place in the engine's queue, and under veRL's asynchronous trainers for a whole training step,
    #: validation and checkpoint, during which veRL's client holds it back (FullyAsyncLLMServerClient). A day
    #: is longer than all of these: the default ends only what would never end.
    engine_timeout_s: float | None = 86_400.0
    #: Kinds of failure with which a trajectory is not trained on.
    mask: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.retries, int) or isinstance(self.retries, bool) or self.retries < 0:
            raise ValueError(f"retries must be a whole number of at least 0, not {self.retries!r}")
        if not _seconds(self.wait_s):
            raise ValueError(f"wait_s must be a number of seconds, not {self.wait_s!r}")
        for name in ("tool_timeout_s", "engine_timeout_s"):
            limit = getattr(self, name)
            if limit is not None and not (_seconds(limit) and limit):
                raise ValueError(f"{name} must be a number of seconds or null, not {limit!r}")
        if not isinstance(self.mask, tuple) or not set(self.mask) <= set(KINDS):
            raise ValueError(f"mask must be a list of some of {', '.join(KINDS)}, not {self.mask!r}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FailurePolicy:
        """From the keys under `rag_r1.failures`; for training, so one retry and every kind but `budget`
        masked unless said otherwise. Raises ValueError naming an unknown or wrong key."""
        known = [spec.name for spec in fields(cls)]
        for key in config:
            if key not in known:
                raise ValueError(f"unknown key rag_r1.failures.{key}: use one of {', '.join(known)}")
        options = {"retries": 1, "mask": _MASKED, **config}
        if isinstance(options["mask"], list):
            options["mask"] = tuple(options["mask"])
        try:
            return cls(**options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"rag_r1.failures.{error}") from None


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
