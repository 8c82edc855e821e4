"""The configuration under the key `rag_r1:`, next to veRL's own keys.

`RagR1Config.read` checks everything when a run starts and gives every fault, each named with its full path,
so that one look is enough to correct them all; `from_config` raises them. The defaults stand in
`recipes/rag_r1_defaults.yaml`; here are only those that a hand-written YAML may leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    "tools",
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
    tools: dict[str, Any]
    reward: tuple[dict[str, Any], ...]
    failures: FailurePolicy
    trajectory_dir: str | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> RagR1Config:
        """From plain values (OmegaConf users: `OmegaConf.to_container(cfg.rag_r1, resolve=True)`).

        Raises ValueError naming every wrong key.
        """
        settings, faults = cls.read(config)
        if len(faults) == 1:
            raise faults[0]
        if faults or settings is None:
            raise ValueError("; ".join(map(str, faults)))
        return settings

    @classmethod
    def read(cls, config: Mapping[str, Any] | None) -> tuple[RagR1Config | None, list[Exception]]:
        """The settings and every fault, as an exception that names the key.

        Where there are faults the settings are for further checks only: a wrong section has its defaults, and
        a protocol that cannot be loaded is None. Without a block `rag_r1:` there are no settings.
        """
        if not isinstance(config, Mapping):
            what = "the configuration has no mapping `rag_r1:`; build on one of the recipes"
            return None, [ValueError(what)]
        faults: list[Exception] = [
            ValueError(f"unknown key rag_r1.{key}: use one of {', '.join(_KEYS)}")
            for key in config
            if key not in _KEYS
        ]
        sections: dict[str, dict[str, Any]] = {}
        for key in ("agent", "validation_agent", "retriever", "validation_retriever", "tools", "failures"):
            sections[key] = _take(lambda key=key: _mapping(config, key), {}, faults)
        for key, build in (
            ("agent", lambda options: Budget.from_config(options, max_response_tokens=1)),
            ("failures", FailurePolicy.from_config),
        ):
            if wrong := faults_of(build, sections[key]):
                faults += wrong
                sections[key] = {}
        validation_agent = {**sections["agent"], **sections["validation_agent"]}
        if wrong := faults_of(lambda options: Budget.from_config(options, 1), validation_agent):
            # Of keys that `agent` does not have, or has right.
            faults += [
                ValueError(str(fault).replace("rag_r1.agent.", "rag_r1.validation_agent.")) for fault in wrong
            ]
            validation_agent = sections["agent"]
        settings = cls(
            protocol=_take(lambda: _protocol(config), None, faults),
            own_prompt=config.get("prompt") is not None,
            agent=sections["agent"],
            validation_agent=validation_agent,
            retriever=sections["retriever"],
            validation_retriever={**sections["retriever"], **sections["validation_retriever"]},
            tools=sections["tools"],
            reward=_take(lambda: _reward(config), (), faults),
            failures=FailurePolicy.from_config(sections["failures"]),
            trajectory_dir=_take(lambda: _trajectory_dir(config), None, faults),
        )
        return settings, faults

    def budget(self, max_response_tokens: int, *, validation: bool = False) -> Budget:
        """The episode's limits when a row can hold `max_response_tokens`."""
        return Budget.from_config(self.validation_agent if validation else self.agent, max_response_tokens)


def faults_of(build: Callable[[dict[str, Any]], Any], options: Mapping[str, Any]) -> list[Exception]:
    """What `build` says against `options`: against each key by itself, or, if each is right by itself,
    against all of them together. For options that all have defaults."""
    try:
        build(dict(options))
        return []
    except (ValueError, TypeError) as fault:
        together: Exception = fault
    alone: list[Exception] = []
    for key, value in options.items():
        try:
            build({key: value})
        except (ValueError, TypeError) as fault:
            alone.append(fault)
    return alone or [together]


def _take(read: Callable[[], Any], otherwise: Any, faults: list[Exception]) -> Any:
    """What `read` gives; if it raises ValueError, that is one more of the faults and `otherwise` is given."""
    try:
        return read()
    except ValueError as fault:
        faults.append(fault)
        return otherwise


def _reward(config: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    reward = config.get("reward") or [{"term": "em", "weight": 1.0}]
    if not isinstance(reward, list | tuple) or not all(isinstance(item, Mapping) for item in reward):
        raise ValueError("rag_r1.reward must be a list of {term, weight, ...}")
    return tuple(dict(item) for item in reward)


def _trajectory_dir(config: Mapping[str, Any]) -> str | None:
    folder = config.get("trajectory_dir")
    if folder is not None and not isinstance(folder, str):
        raise ValueError(f"rag_r1.trajectory_dir must be a folder or null, not {folder!r}")
    return folder


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
