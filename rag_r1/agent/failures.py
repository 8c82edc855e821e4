"""Failures of the infrastructure: their kinds, and the policy that says how an episode handles them.

A failure is not an action of the policy. It is classified where the episode calls an engine or a tool
(episode.py, tool_executor.py) and retried there as often as the `FailurePolicy` allows. If it persists, it is
recorded once in the trajectory. A retry loses nothing: a failed call has added no token to the ledger, so it
is repeated from the same context, in the same turn. The tokenizer is not retried, as it would fail in the
same way again.

The kinds of a trajectory's failures decide what the trainer does with it. A kind in `mask` keeps it out of
the loss and out of the baseline of its group (plugin/sampler.py); with other kinds it is trained on. An
episode ends as soon as it has a masked failure, since nothing after it would be trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from rag_r1.io.call_timeout import CallTimeoutError
from rag_r1.io.retry import backoff
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.declare import options
from rag_r1.options.types import Constraint, Count, PositiveSeconds, Seconds
from rag_r1.protocols.actions import well_formed

#: The kinds of failures.
#:
#:     retriever   the retrieval server did not answer
#:     tool        another tool failed
#:     engine      a generation was aborted, raised, timed out or is impossible (ids outside the vocabulary,
#:                 NaN log-probs)
#:     judge       the judge of a reward term failed
#:     row         the row of the data set could not be used
#:     error       a bug
#:     budget      the policy ran out of turns or tokens; this is no failure of the infrastructure, but it
#:                 can be masked like one (DAPO's overlong filtering)
Kind = Literal["retriever", "tool", "engine", "judge", "row", "error", "budget"]
KINDS: tuple[str, ...] = get_args(Kind)
#: An option that lists some of the kinds.
Kinds = Annotated[tuple[Kind, ...], Constraint(f"a list of some of {', '.join(KINDS)}")]


@dataclass(frozen=True)
class FailureRecord:
    """One failure that persisted after all retries."""

    kind: Kind
    #: Index of the turn in which it happened.
    turn: int
    #: A description for people; the policy never sees it.
    detail: str = ""


@options("rag_r1.failures")
class FailurePolicy:
    """The keys under `rag_r1.failures`. By default the policy is shown that a call failed, and continues."""

    #: How often a failed call of the engine or of a tool is repeated. A tool's own `retries` replace it.
    retries: Count = 0
    #: Seconds before the first retry; doubles with each further one.
    wait_s: Seconds = 1.0
    #: Seconds after which a call of a tool counts as failed, including the tool's own retries. Without a
    #: limit (None), a tool that hangs would hang the run. A tool's own `timeout_s` replaces it.
    tool_timeout_s: PositiveSeconds | None = 300.0
    #: Seconds after which a generation counts as failed; None: no limit. A turn may have to wait in the
    #: engine's queue and, under veRL's asynchronous trainers, even for a whole training step with validation
    #: and checkpoint, during which veRL's client (FullyAsyncLLMServerClient) holds it back. The default, a
    #: day, is longer than any of these and ends only what would never end.
    engine_timeout_s: PositiveSeconds | None = 86_400.0
    #: Kinds of failures that exclude a trajectory from training.
    mask: Kinds = ()

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after attempt number `attempt`, from 0, has failed."""
        return backoff(self.wait_s, attempt)


#: The defaults for training: one retry, and every kind but `budget` masked.
FOR_TRAINING: dict[str, Any] = {"retries": 1, "mask": tuple(kind for kind in KINDS if kind != "budget")}

#: The defaults outside training: the policy is shown that a call failed, and the episode continues.
NO_RETRIES = FailurePolicy()


def error_line(error: Exception) -> str:
    """Return a description of an error for people, on one line of at most 200 characters. It is the error's
    type alone if making its text raises."""
    if isinstance(error, CallTimeoutError):
        return str(error)
    try:
        return terminal_text(well_formed(f"{type(error).__name__}: {error}"), 200)
    except Exception:  # the error's class may be a user's, and its `__str__` may raise anything
        return type(error).__name__
