"""The limits of an episode. All counts are tokens unless they say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from rag_r1.agent.tokens.ledger import Capacity
from rag_r1.options.declare import options
from rag_r1.options.from_config import options_from
from rag_r1.options.types import Count, Flag, PositiveCount, PositiveNumber


@options("rag_r1.agent")
class EpisodeLimits:
    """The keys under `rag_r1.agent`: the limits of a query, of a turn and of an episode."""

    #: Most turns in which the policy may search. Without `final_turn` the last of them can only answer.
    max_turns: Count = 4
    #: Whether one more turn follows, in which no search is made (the last rollout of Search-R1 and RAG-R1).
    final_turn: Flag = True
    #: Most tokens that are generated in a turn.
    max_turn_tokens: PositiveCount = 500
    #: Most tokens of documents that are shown for one query.
    max_query_observation_tokens: PositiveCount = 1000
    #: Most tokens of one observation, including its tags; None: as many as the totals allow.
    max_observation_tokens: PositiveCount | None = None
    #: Tokens that an observation must leave for the turn after it.
    min_turn_tokens: PositiveCount = 16
    #: Most generated and observed tokens of an episode; None: as many as its training rows hold. There is
    #: more than one row only in a protocol that rewrites its context.
    max_episode_tokens: PositiveCount | None = None
    #: Number of turns with an action that must come before an answer; an earlier answer becomes a thought.
    min_actions: Count = 0
    #: An answer is accepted only while the memory's state (memory.py) is below this many nats; None: always.
    max_state: PositiveNumber | None = None
    #: Number of episodes for each question, whose answers vote (self_consistency.py); only outside training.
    paths: PositiveCount = 1

    @model_validator(mode="after")
    def _a_turn_is_left(self) -> EpisodeLimits:
        if self.max_turns == 0 and not self.final_turn:
            raise ValueError("max_turns is 0 and final_turn is false: no turn is left")
        return self


@options("rag_r1.agent")
class Budget(EpisodeLimits):
    """The limits of an episode, and the totals that the trainer's row and the engine's context can hold.

    The totals are not keys of `rag_r1.agent`: the trainer and the engine set them. When one is reached, the
    episode ends with the status `token_limit`; a context that the policy has seen is never shortened.
    """

    #: Most generated and observed tokens of one training row.
    max_response_tokens: PositiveCount = 4096
    #: Most tokens of the prompt; None: as many as the context holds.
    max_prompt_tokens: PositiveCount | None = None
    #: Most tokens of the engine's context: prompt, generated and observed tokens of a row; None: no limit.
    max_context_tokens: PositiveCount | None = None

    @property
    def prompt_limit(self) -> int | None:
        """Most tokens of a prompt that leaves room for one generated token; None: no limit."""
        limits = (self.max_prompt_tokens, self.max_context_tokens and self.max_context_tokens - 1)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def row_capacity(self) -> Capacity:
        """The tokens that one training row can hold."""
        return Capacity(self.max_response_tokens, self.max_context_tokens)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], max_response_tokens: int) -> Budget:
        """Read the keys under `rag_r1.agent`. Raises OptionsError, which names every unknown or wrong key."""
        return cls(**vars(options_from(EpisodeLimits, config)), max_response_tokens=max_response_tokens)
