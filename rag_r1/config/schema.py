"""The configuration block `rag_r1:`, beside veRL's own keys, and the options of our sampler.

Every key is declared once, with its type, limits and default: those of a section where it is used (the limits
of an episode in agent/budget.py, the failure policy in agent/failures.py, the retrieval client's in
rag_r1/tools/retrieval/client.py), the others here; rag_r1/options/declare.py explains how. `RagR1Config.read`
checks everything when a run starts and returns every fault with the full path of its key, so that all can be
corrected at once; `from_config` raises them. `recipes/rag_r1_defaults.yaml` shows and explains the keys; its
defaults equal the declared ones (tests/config/test_schema.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict

from rag_r1.agent import Budget, FailurePolicy
from rag_r1.agent.budget import EpisodeLimits
from rag_r1.agent.failures import FOR_TRAINING
from rag_r1.config.guard import GuardOptions
from rag_r1.options.declare import (
    Constraint,
    Count,
    Flag,
    OptionFault,
    OptionsError,
    PositiveCount,
    Seconds,
    Text,
    options,
    options_from,
    read_options,
)
from rag_r1.protocols import Protocol, ProtocolError, load_protocol, load_with_prompt

_REWARD = ({"term": "em", "weight": 1.0},)


def _reward_entries(value: Any) -> Any:
    """A list of mappings as a tuple; the default for an empty or missing list."""
    return tuple(value) if isinstance(value, list) and value else value or _REWARD


def _unique(probes: tuple[str, ...]) -> tuple[str, ...]:
    """The probes. Raises ValueError if one is repeated."""
    if len(set(probes)) < len(probes):
        raise ValueError("a probe is named twice")
    return probes


#: The probes (rag_r1/probes/probes.py) that a validation can play.
ValidationProbe = Literal["closed_book", "empty", "random", "gold", "withheld"]
#: Those that show passages of the file `rag_r1.probe_passages`.
SHOW_PASSAGES: tuple[ValidationProbe, ...] = ("random", "gold")
Probes = Annotated[
    tuple[ValidationProbe, ...],
    BeforeValidator(lambda value: tuple(value or ()) if isinstance(value, list | None) else value),
    AfterValidator(_unique),
    Constraint("a list of closed_book, empty, random, gold, withheld, each once"),
]
Section = Annotated[
    dict, BeforeValidator(lambda value: {} if value is None else value), Constraint("a mapping")
]
Entries = Annotated[
    tuple[dict, ...], BeforeValidator(_reward_entries), Constraint("a list of {term, weight, ...}")
]


@options("rag_r1")
class _RagR1Block:
    """The keys of the block. Each section is read separately, and the list of rewards where it is used."""

    #: Must be given.
    protocol: Annotated[Text | None, Constraint("the name of a protocol")] = None
    #: A text file.
    prompt: Annotated[Text | None, Constraint("a file or null")] = None
    agent: Section = field(default_factory=dict)
    validation_agent: Section = field(default_factory=dict)
    retriever: Section = field(default_factory=dict)
    validation_retriever: Section = field(default_factory=dict)
    #: Further tools, by name: an import path, or a mapping with `tool` and its options (tools/registry.py).
    tools: Section = field(default_factory=dict)
    reward: Entries = _REWARD
    failures: Section = field(default_factory=dict)
    #: When a training counts as going wrong (config/guard.py).
    guard: Section = field(default_factory=dict)
    #: Under which the questions of a validation are played once more (plugin/probe_rows.py).
    probes: Probes = ()
    #: The passages that `random` and `gold` show (rag_r1/probes/passages.py).
    probe_passages: Annotated[Text | None, Constraint("a file or null")] = None
    trajectory_dir: Annotated[Text | None, Constraint("a folder or null")] = None
    #: Whether the records in it are compressed.
    trajectory_gzip: Flag = False
    #: Whether they hold their training rows: ids, mask and log-probs.
    trajectory_tokens: Flag = False
    #: GB (10^9 bytes) of a GPU, for the preflight's estimate; None: this machine's, or 80.
    gpu_memory_gb: Annotated[float | None, Strict(), Field(gt=0), Constraint("a number above 0, or null")] = (
        None
    )


@dataclass(frozen=True)
class RagR1Config:
    """The checked settings of the plugin. `agent` becomes a Budget once the row length is known.

    `validation_agent` and `validation_retriever` are `agent` and `retriever` with the keys that validation
    changes. `retriever` has the keys of the tool that it names; that tool checks them.
    """

    protocol: Protocol
    own_prompt: bool
    agent: EpisodeLimits
    validation_agent: EpisodeLimits
    retriever: dict[str, Any]
    validation_retriever: dict[str, Any]
    tools: dict[str, Any]
    reward: tuple[dict[str, Any], ...]
    failures: FailurePolicy
    guard: GuardOptions
    trajectory_dir: str | None
    probes: tuple[ValidationProbe, ...] = ()
    probe_passages: str | None = None
    trajectory_gzip: bool = False
    trajectory_tokens: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> RagR1Config:
        """Reads the settings from plain values (of OmegaConf: `OmegaConf.to_container(cfg.rag_r1,
        resolve=True)`). Raises ValueError naming every wrong key."""
        settings, faults = cls.read(config)
        if len(faults) == 1:
            raise faults[0]
        if faults or settings is None:
            raise ValueError("; ".join(map(str, faults)))
        return settings

    @classmethod
    def read(cls, config: Mapping[str, Any] | None) -> tuple[RagR1Config | None, list[Exception]]:
        """Returns the settings, and every fault as an exception that names the key.

        If there are faults, the settings are for further checks only: wrong values are replaced by their
        defaults, and a protocol that cannot be loaded is None. Without a block `rag_r1:` there are no
        settings.
        """
        if not isinstance(config, Mapping):
            message = "the configuration has no mapping `rag_r1:`; build on one of the recipes"
            return None, [ValueError(message)]
        faults: list[Exception] = []

        def section(declared: type, values: Mapping[str, Any], *key: str) -> Any:
            section_options, section_faults = read_options(declared, values, *key)
            faults.extend(section_faults)
            return section_options

        block = section(_RagR1Block, config)
        protocol = _protocol_or_fault(block, faults)
        agent = section(EpisodeLimits, block.agent)
        validation = {**vars(agent), **block.validation_agent}
        settings = cls(
            protocol=protocol,
            own_prompt=block.prompt is not None,
            agent=agent,
            validation_agent=section(EpisodeLimits, validation, "rag_r1.validation_agent"),
            retriever=block.retriever,
            validation_retriever={**block.retriever, **block.validation_retriever},
            failures=section(FailurePolicy, {**FOR_TRAINING, **block.failures}),
            guard=section(GuardOptions, block.guard),
            tools=block.tools,
            reward=block.reward,
            trajectory_dir=block.trajectory_dir,
            probes=block.probes,
            probe_passages=block.probe_passages,
            trajectory_gzip=block.trajectory_gzip,
            trajectory_tokens=block.trajectory_tokens,
        )
        fault = _missing_passages(block)
        if fault and fault.key not in [getattr(earlier, "key", "") for earlier in faults]:
            faults.append(fault)
        return settings, faults

    def check_paths(self) -> None:
        """Raises OptionFault if `paths` is more than 1, which a training cannot play."""
        for section, limits in (("agent", self.agent), ("validation_agent", self.validation_agent)):
            if limits.paths > 1:
                key, count = f"rag_r1.{section}.paths", limits.paths
                message = (
                    f"{key} is {count}, but in a training each path is a sample with a reward of its own: "
                    f"set it to 1 and actor_rollout_ref.rollout.n={count}; `rag-r1 eval` plays several"
                )
                raise OptionFault(key, message)

    def budget(self, max_response_tokens: int, *, validation: bool = False) -> Budget:
        """Returns the episode's limits for rows of `max_response_tokens`."""
        limits = self.validation_agent if validation else self.agent
        return Budget(**vars(limits), max_response_tokens=max_response_tokens)


@options("algorithm.filter_groups", others="ignore")
class FilterGroups:
    """The part of veRL's block `algorithm.filter_groups` that our sampler reads (veRL checks it itself)."""

    enable: Flag = False
    #: `reward`, or the name of a term; None: veRL's default.
    metric: Text | None = None
    #: Most batches of prompts generated in a step; 0 or less: no limit.
    max_num_gen_batches: Annotated[int, Strict(), Constraint("a whole number")] | None = None
    #: Most batches of prompts that are waiting or being generated at a time.
    max_inflight_gen_batches: Count | None = None


def _filter_groups(value: Any) -> Any:
    """A mapping (or None) as FilterGroups; anything else is left for pydantic to refuse."""
    value = {} if value is None else value
    return options_from(FilterGroups, value) if isinstance(value, Mapping) else value


@options("trainer.v1.sampler.sampler_kwargs")
class SamplerOptions:
    """The keys under `trainer.v1.sampler.sampler_kwargs`: our own, and veRL's settings that veRL does not
    pass to a sampler named in the configuration (plugin/sampler.py, plugin/group_filter.py)."""

    #: Seconds between two checks for finished trajectories; None: veRL's default.
    poll_interval: Seconds | None = None
    #: How often a batch of which failures have left nothing is generated again.
    refills: Count = 5
    #: Seconds before the first refill; doubles each time.
    refill_wait_s: Seconds = 10.0
    #: Trajectories that a group should have; None: not known.
    group_size: PositiveCount | None = None
    #: Prompts of a batch; None: not known.
    train_batch_size: PositiveCount | None = None
    filter_groups: Annotated[
        FilterGroups, BeforeValidator(_filter_groups), Constraint("veRL's block algorithm.filter_groups")
    ] = FilterGroups()
    #: Whether groups of which nothing arrived are replaced.
    sync_refill_failed_groups: Flag = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> SamplerOptions:
        """Reads the keys from plain values. Raises OptionsError naming every unknown or wrong key."""
        return options_from(cls, config or {})


def find_faults(build: Callable[[dict[str, Any]], Any], options: Mapping[str, Any]) -> list[Exception]:
    """Returns the faults that `build` finds in `options`: all of them if it raises OptionsError, else the one
    error that it raises."""
    try:
        build(dict(options))
    except OptionsError as error:
        return list(error.faults)
    except (ValueError, TypeError) as fault:
        return [fault]
    return []


def _missing_passages(block: _RagR1Block) -> OptionFault | None:
    """The fault of probes that show passages without a file of passages, else None."""
    probes = [probe for probe in block.probes if probe in SHOW_PASSAGES]
    if not probes or block.probe_passages is not None:
        return None
    key = "rag_r1.probe_passages"
    message = f"must be given for the probes {', '.join(probes)}: a file made with `rag-r1 probe-passages`"
    return OptionFault(key, f"{key} {message}")


def _protocol_or_fault(block: _RagR1Block, faults: list[Any]) -> Protocol | None:
    """The protocol with its prompt; None, with its fault added to `faults`, if it cannot be loaded."""
    if "rag_r1.protocol" in [fault.key for fault in faults]:
        return None
    try:
        return _protocol(block)
    except ValueError as fault:
        faults.append(fault)
        return None


def _protocol(block: _RagR1Block) -> Protocol:
    if block.protocol is None:
        raise ValueError("rag_r1.protocol must be the name of a protocol, not None")
    try:
        load_protocol(block.protocol)
    except ProtocolError as error:
        raise ValueError(f"rag_r1.protocol: {error}") from error
    return load_with_prompt(block.protocol, block.prompt, "rag_r1.prompt:")
