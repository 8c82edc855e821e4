"""The configuration under the key `rag_r1:`, next to veRL's own keys.

`RagR1Config.from_config` checks everything at once when a run starts; a wrong key or value is named with
its full path. The defaults stand in `recipes/rag_r1_defaults.yaml`; here are only those that a hand-written
YAML may leave out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_r1.agent import Budget, FailurePolicy
from rag_r1.protocols import Protocol, ProtocolError, load_protocol

_KEYS = (
    "protocol",
    "prompt",
    "agent",
    "validation_agent",
    "retriever",
    "validation_retriever",
    "reward",
    "failures",
    "trajectory_dir",
)


@dataclass(frozen=True)
class RagR1Config:
    """What the plugin needs to know, checked. `agent` becomes a Budget once the row length is known.

    `validation_agent` and `validation_retriever` are all of `agent` and `retriever` with the keys that
    validation changes.
    """

    protocol: Protocol
    own_prompt: bool
    agent: dict[str, Any]
    validation_agent: dict[str, Any]
    retriever: dict[str, Any]
    validation_retriever: dict[str, Any]
    reward: tuple[dict[str, Any], ...]
    failures: FailurePolicy
    trajectory_dir: str | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> RagR1Config:
        """From plain values (OmegaConf users: `OmegaConf.to_container(cfg.rag_r1, resolve=True)`).

        Raises ValueError naming the key.
        """
        if not isinstance(config, Mapping):
            raise ValueError("the configuration has no mapping `rag_r1:`; build on one of the recipes")
        for key in config:
            if key not in _KEYS:
                raise ValueError(f"unknown key rag_r1.{key}: use one of {', '.join(_KEYS)}")
        agent, retriever = _mapping(config, "agent"), _mapping(config, "retriever")
        validation_agent = {**agent, **_mapping(config, "validation_agent")}
        Budget.from_config(agent, max_response_tokens=1)
        try:
            Budget.from_config(validation_agent, max_response_tokens=1)
        except ValueError as error:  # of keys that `agent` does not have, or has right
            raise ValueError(str(error).replace("rag_r1.agent.", "rag_r1.validation_agent.")) from None
        reward = config.get("reward") or [{"term": "em", "weight": 1.0}]
        if not isinstance(reward, list | tuple) or not all(isinstance(item, Mapping) for item in reward):
            raise ValueError("rag_r1.reward must be a list of {term, weight, ...}")
        return cls(
            protocol=_protocol(config),
            own_prompt=config.get("prompt") is not None,
            agent=agent,
            validation_agent=validation_agent,
            retriever=retriever,
            validation_retriever={**retriever, **_mapping(config, "validation_retriever")},
            reward=tuple(dict(item) for item in reward),
            failures=FailurePolicy.from_config(_mapping(config, "failures")),
            trajectory_dir=config.get("trajectory_dir"),
        )

    def budget(self, max_response_tokens: int, *, validation: bool = False) -> Budget:
        """The episode's limits when a row can hold `max_response_tokens`."""
        return Budget.from_config(self.validation_agent if validation else self.agent, max_response_tokens)


def _mapping(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"rag_r1.{key} must be a mapping, not {value!r}")
    return dict(value or {})


def _protocol(config: Mapping[str, Any]) -> Protocol:
    name, path = config.get("protocol"), config.get("prompt")
    if not isinstance(name, str):
        raise ValueError(f"rag_r1.protocol must be the name of a protocol, not {name!r}")
    prompt = None
    if path is not None:
        try:
            prompt = Path(path).read_text(encoding="utf-8")
        except (OSError, TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"rag_r1.prompt: cannot read {path!r}: {error}") from error
    try:
        return load_protocol(name, prompt)
    except ProtocolError as error:
        raise ValueError(f"rag_r1.protocol: {error}") from error
