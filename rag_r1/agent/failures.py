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
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Strict

from rag_r1.options import Count, Must, PositiveSeconds, Seconds, options, options_from

#: retriever: the search engine gave no answer; tool: a tool of one's own failed; engine: a generation was
#: aborted, raised, took too long or cannot be true (ids outside the vocabulary, NaN log-probs); judge: a
#: reward term could not be judged; row: the data set's row could not be used; error: a fault in code;
#: budget: the policy ran out of turns or tokens (not the infrastructure's doing; masking it is DAPO's
#: overlong filtering).
Kind = Literal["retriever", "tool", "engine", "judge", "row", "error", "budget"]
KINDS: tuple[str, ...] = get_args(Kind)
#: A list in YAML.
Kinds = Annotated[
    tuple[Kind, ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
    Strict(),
    Must(f"a list of some of {', '.join(KINDS)}"),
]


@dataclass(frozen=True)
class FailureNote:
    """One failure that no retry mended: its kind, the turn (from 0) in which it happened, and words for
    people."""

    kind: str
    turn: int
    detail: str = ""


@options("rag_r1.failures")
class FailurePolicy:
    """The keys under `rag_r1.failures`. The default shows a failed search to the policy and goes on."""

    #: Times that a failed call of the engine or of the searcher is made again.
    retries: Count = 0
    #: Seconds before the first of them; doubles each time.
    wait_s: Seconds = 1.0
    #: Seconds that a search may take, its own retries included, before it counts as failed: a tool that hangs
    #: would hang the run. None: no limit.
    tool_timeout_s: PositiveSeconds | None = 300.0
    #: Seconds that a generation may take before it counts as failed; None: no limit. A turn may rightly wait
    #: for its place in the engine's queue, and under veRL's asynchronous trainers for a whole training step,
    #: validation and checkpoint, during which veRL's client holds it back (FullyAsyncLLMServerClient). A day
    #: is longer than all of these: the default ends only what would never end.
    engine_timeout_s: PositiveSeconds | None = 86_400.0
    #: Kinds of failure with which a trajectory is not trained on.
    mask: Kinds = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FailurePolicy:
        """From the keys under `rag_r1.failures`, with the defaults of a training. Raises OptionsError naming
        every unknown or wrong key."""
        return options_from(cls, {**FOR_TRAINING, **config})


#: What a training does unless told otherwise: one retry, and every kind but `budget` masked.
FOR_TRAINING: dict[str, Any] = {
    "retries": 1,
    "mask": ("retriever", "tool", "engine", "judge", "row", "error"),
}
