"""Infrastructure failures: the policy that says how an episode handles them, and the texts about them.

A failure is not an action of the policy. It gets its type where the episode calls an engine or a tool
(episode.py, tool_executor.py), is retried there as often as the FailurePolicy allows, and, if it persists, is
recorded once in the trajectory. A retry loses nothing of the trajectory: a failed call has added no token to
the ledger, so the call is made again from the same context, in the same turn. A codec is not retried: it
would fail again in the same way.

What the trainer does with a trajectory that has failures depends on their kinds: those in `mask` keep it out
of the loss and out of its group's baseline (see plugin/sampler.py); others leave it in. An episode ends at
once with a failure that will be masked, since nothing after it would be trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Strict

from rag_r1.io.call_timeout import CallTimeoutError
from rag_r1.io.retry import backoff
from rag_r1.io.terminal_text import terminal_text
from rag_r1.options.declare import Constraint, Count, PositiveSeconds, Seconds, options, options_from
from rag_r1.protocols import SEARCH
from rag_r1.protocols.actions import well_formed

#: retriever: the retrieval server did not answer; tool: another tool failed; engine: a generation was
#: aborted, raised, timed out or is impossible (ids outside the vocabulary, NaN log-probs); judge: the judge
#: of a reward term failed; row: the data set's row could not be used; error: a bug; budget: the policy ran
#: out of turns or tokens (no failure of the infrastructure; masking it is DAPO's overlong filtering).
Kind = Literal["retriever", "tool", "engine", "judge", "row", "error", "budget"]
KINDS: tuple[str, ...] = get_args(Kind)
#: Some of the kinds.
Kinds = Annotated[
    tuple[Kind, ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),  # YAML has lists
    Strict(),
    Constraint(f"a list of some of {', '.join(KINDS)}"),
]

#: What the policy reads when a search failed. A fixed text: a tool's own may be hostile.
NO_ANSWER = "The search engine did not answer. Try another query, or answer with what is known."
TIMED_OUT = "The search did not answer in time. Try another query, or answer with what is known."

_NO_TOOL = "The tool {name} did not answer. Try another call, or answer with what is known."


@dataclass(frozen=True)
class FailureRecord:
    """One failure that persisted after all retries: its kind, the turn (from 0) in which it happened, and a
    description for people."""

    kind: str
    turn: int
    detail: str = ""


@options("rag_r1.failures")
class FailurePolicy:
    """The keys under `rag_r1.failures`. The default shows a failed search to the policy and goes on."""

    #: Retries of a failed call of the engine or of a tool.
    retries: Count = 0
    #: Seconds before the first retry; doubles each time.
    wait_s: Seconds = 1.0
    #: Seconds that a search may take, its own retries included, before it counts as failed: a tool that hangs
    #: would hang the run. None: no limit.
    tool_timeout_s: PositiveSeconds | None = 300.0
    #: Seconds that a generation may take before it counts as failed; None: no limit. A turn may have to wait
    #: in the engine's queue, and under veRL's asynchronous trainers for a whole training step, validation and
    #: checkpoint, during which veRL's client (FullyAsyncLLMServerClient) holds it back. A day is longer than
    #: any of these: the default ends only what would never end.
    engine_timeout_s: PositiveSeconds | None = 86_400.0
    #: Kinds of failure that exclude a trajectory from training.
    mask: Kinds = ()

    def delay(self, attempt: int) -> float:
        """Seconds before the next attempt, after `attempt` (from 0) has failed."""
        return backoff(self.wait_s, attempt)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FailurePolicy:
        """Reads the keys under `rag_r1.failures`, with the defaults for training. Raises OptionsError naming
        every unknown or wrong key."""
        return options_from(cls, {**FOR_TRAINING, **config})


#: The defaults for training: one retry, and every kind but `budget` masked.
FOR_TRAINING: dict[str, Any] = {
    "retries": 1,
    "mask": ("retriever", "tool", "engine", "judge", "row", "error"),
}

#: The defaults outside training: a failed search is shown to the policy, and the episode goes on.
NO_RETRIES = FailurePolicy()


def failure_text(tool: str, late: bool = False) -> str:
    """Returns the text that the policy reads when a call of this tool failed, or (`late`) took too long."""
    if tool != SEARCH:
        return _NO_TOOL.format(name=tool)
    return TIMED_OUT if late else NO_ANSWER


def error_line(error: Exception) -> str:
    """Returns an error on one line of at most 200 characters, for people; its type alone if its text cannot
    be made."""
    if isinstance(error, CallTimeoutError):
        return str(error)
    try:
        return terminal_text(well_formed(f"{type(error).__name__}: {error}"), 200)
    except Exception:  # of a tool's or a reward's own class, whose text may raise anything
        return type(error).__name__
