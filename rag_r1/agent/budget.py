"""The limits of an episode. All counts are tokens unless they say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from rag_r1.agent.tokens.ledger import Capacity
from rag_r1.options.declare import Count, Flag, PositiveCount, PositiveNumber, options, options_from


@options("rag_r1.agent")
class EpisodeLimits:
    """The keys under `rag_r1.agent`: limits per query and per turn."""

    #: Turns in which the policy may search (without `final_turn`, the last of them can only answer).
    max_turns: Count = 4
    #: One more turn at the end, in which no search is carried out (Search-R1's and RAG-R1's last rollout).
    final_turn: Flag = True
    #: Generated tokens in a turn.
    max_turn_tokens: PositiveCount = 500
    #: Document tokens shown for one query.
    max_query_observation_tokens: PositiveCount = 1000
    #: Tokens of one observation, tags included; None: only the total limits it.
    max_observation_tokens: PositiveCount | None = None
    #: Room that an observation must leave for the turn after it.
    min_turn_tokens: PositiveCount = 16
    #: Generated and observed tokens of the whole episode; None: what its training rows hold. Only a protocol
    #: that rewrites its context has more than one row.
    max_episode_tokens: PositiveCount | None = None
    #: Turns with an action before an answer is accepted; an earlier answer becomes a thought.
    min_actions: Count = 0
    #: The memory's state (memory.py) below which an answer is accepted, in nats; None: any.
    max_state: PositiveNumber | None = None
    #: Episodes of each question, whose answers vote (self_consistency.py); not in a training.
    paths: PositiveCount = 1

    @model_validator(mode="after")
    def _a_turn_is_left(self) -> EpisodeLimits:
        if self.max_turns == 0 and not self.final_turn:
            raise ValueError("max_turns is 0 and final_turn is false: no turn is left")
        return self


@options("rag_r1.agent")
class Budget(EpisodeLimits):
    """The limits of an episode, with the totals that the trainer's row and the engine's context can hold;
    these totals are not keys of `rag_r1.agent`.

    When a total is reached, the episode ends with the status `token_limit`; nothing is ever cut out of a
    context that the policy has seen.
    """

    #: Generated and observed tokens in one training row.
    max_response_tokens: PositiveCount = 4096
    #: Tokens of the prompt; None: as many as the context holds.
    max_prompt_tokens: PositiveCount | None = None
    #: Prompt, generated and observed tokens of a row, as the engine's context holds them; None: no limit.
    max_context_tokens: PositiveCount | None = None

    @property
    def prompt_limit(self) -> int | None:
        """Length of the longest prompt that leaves room for a token; None: no limit."""
        limits = (self.max_prompt_tokens, self.max_context_tokens and self.max_context_tokens - 1)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def row_capacity(self) -> Capacity:
        """The tokens that one training row can hold."""
        return Capacity(self.max_response_tokens, self.max_context_tokens)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], max_response_tokens: int) -> Budget:
        """Reads the keys under `rag_r1.agent`. Raises OptionsError naming every unknown or wrong key."""
        return cls(**vars(options_from(EpisodeLimits, config)), max_response_tokens=max_response_tokens)
