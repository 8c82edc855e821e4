"""The limits of an episode. All counts are tokens unless they say otherwise."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rag_r1.agent.ledger import Capacity

#: What the trainer's rows and the engine can hold; they are no keys of `rag_r1.agent`.
_TRAINERS = {"max_response_tokens", "max_prompt_tokens", "max_context_tokens"}


@dataclass(frozen=True)
class Budget:
    """Limits per query, per turn and in total; `from_config` names the key that is wrong.

    The totals are what the trainer's row and the engine's context can hold. When one is reached the episode
    ends with the status `token_limit`; nothing is ever cut out of a context that the policy has seen.
    """

    #: Turns in which the policy may search (without `final_turn`, the last of them only answers).
    max_turns: int = 4
    #: One more turn at the end in which a search is not carried out (Search-R1's and RAG-R1's last rollout).
    final_turn: bool = True
    #: Generated tokens in a turn.
    max_turn_tokens: int = 500
    #: Document tokens shown for one query.
    max_query_observation_tokens: int = 1000
    #: Tokens of one observation, tags included; None: only the total limits it.
    max_observation_tokens: int | None = None
    #: Room that an observation must leave for the turn after it.
    min_turn_tokens: int = 16
    #: Generated and observed tokens in one training row.
    max_response_tokens: int = 4096
    #: Tokens of the prompt; None: as many as the context holds.
    max_prompt_tokens: int | None = None
    #: Prompt, generated and observed tokens of a row, as the engine's context holds them; None: no limit.
    max_context_tokens: int | None = None
    #: Generated and observed tokens of the whole episode; None: what its training rows hold. Only a protocol
    #: that rewrites its context has more than one row.
    max_episode_tokens: int | None = None

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if spec.name == "final_turn":
                if not isinstance(value, bool):
                    raise ValueError(f"final_turn must be true or false, not {value!r}")
                continue
            if value is None and spec.default is None:
                continue
            least = 0 if spec.name == "max_turns" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{spec.name} must be a whole number of at least {least}, not {value!r}")
        if self.max_turns == 0 and not self.final_turn:
            raise ValueError("max_turns is 0 and final_turn is false: no turn is left")

    @property
    def most_prompt_tokens(self) -> int | None:
        """The longest prompt that leaves room for a token; None: any does."""
        limits = (self.max_prompt_tokens, self.max_context_tokens and self.max_context_tokens - 1)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def row_capacity(self) -> Capacity:
        """What one training row can hold."""
        return Capacity(self.max_response_tokens, self.max_context_tokens)

    @classmethod
    def from_config(cls, config: dict, max_response_tokens: int) -> Budget:
        """From the keys under `rag_r1.agent`. Raises ValueError naming an unknown or wrong key."""
        known = {spec.name for spec in fields(cls)} - _TRAINERS
        for key in config:
            if key not in known:
                raise ValueError(f"unknown key rag_r1.agent.{key}: use one of {', '.join(sorted(known))}")
        try:
            return cls(**config, max_response_tokens=max_response_tokens)
        except ValueError as error:
            raise ValueError(f"rag_r1.agent.{error}") from None
