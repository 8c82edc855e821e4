"""The configuration block `rag_r1:` beside veRL's keys, and the options of our sampler.

Every key is declared once, with its type, limits and default (rag_r1/options/declare.py explains how). The
keys of a section are declared where they are used: the limits of an episode in agent/budget.py, the failure
policy in agent/failures.py, the guard in config/guard.py, the retrieval client's keys in
rag_r1/tools/retrieval/options.py. All others are declared here. `RagR1Config.read` checks the block when a
run starts, and returns every fault with the full path of its key, so that the user can correct all of them at
once; `from_config` raises them. Only the entries of `tools`, `reward` and `retriever` are checked where they
are used, those of `retriever` by search_faults.py. `recipes/rag_r1_defaults.yaml` shows and explains the
keys, with the same defaults (tests/config/test_schema.py).
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
from rag_r1.options.declare import OptionFault, OptionsError, options
from rag_r1.options.from_config import options_from, read_options
from rag_r1.options.types import Constraint, Count, Flag, PositiveCount, Seconds, Text
from rag_r1.protocols import Protocol, ProtocolError, load_protocol, load_with_prompt

_REWARD = ({"term": "em", "weight": 1.0},)


def _reward_entries(value: Any) -> Any:
    """Return a list as a tuple, and the default for an empty list or null. Anything else is left for pydantic
    to refuse."""
    value = _REWARD if value in (None, [], ()) else value
    return tuple(value) if isinstance(value, list) else value


def _unique(probes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the probes. Raises ValueError if one is repeated."""
    if len(set(probes)) < len(probes):
        raise ValueError("a probe is named twice")
    return probes


#: The probes (rag_r1/probes/probes.py) that a validation can use.
ValidationProbe = Literal["closed_book", "empty", "random", "gold", "withheld"]
#: The probes that show passages from the file `rag_r1.probe_passages`.
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
Entries = Annotated[  # RewardSum.read checks each entry
    tuple[Any, ...], BeforeValidator(_reward_entries), Constraint("a list of {term, weight, ...}")
]


@options("rag_r1")
class _RagR1Block:
    """The keys of the block. Sections and the list of rewards are only passed on, and read where they are
    used."""

    #: Name or file of the protocol. It must be given.
    protocol: Annotated[Text | None, Constraint("the name of a protocol")] = None
    #: A text file with a prompt that replaces the protocol's.
    prompt: Annotated[Text | None, Constraint("a file or null")] = None
    agent: Section = field(default_factory=dict)
    validation_agent: Section = field(default_factory=dict)
    retriever: Section = field(default_factory=dict)
    validation_retriever: Section = field(default_factory=dict)
    #: Further tools, by name: an import path, or a mapping with `tool` and its options (tools/registry.py).
    tools: Section = field(default_factory=dict)
    reward: Entries = _REWARD
    failures: Section = field(default_factory=dict)
    #: When a training counts as going wrong, and what is done then (config/guard.py).
    guard: Section = field(default_factory=dict)
    #: A validation repeats its questions under each of these probes (plugin/probe_rows.py).
    probes: Probes = ()
    #: A file with the passages that the probes `random` and `gold` show (rag_r1/probes/passages.py).
    probe_passages: Annotated[Text | None, Constraint("a file or null")] = None
    #: The folder for trajectory records; None: none are written.
    trajectory_dir: Annotated[Text | None, Constraint("a folder or null")] = None
    #: Whether the records are compressed.
    trajectory_gzip: Flag = False
    #: Whether the records contain their training rows: token ids, mask and log-probs.
    trajectory_tokens: Flag = False
    #: Memory of a GPU in GB (10^9 bytes), for the preflight's estimate; None: that of this machine, or 80.
    gpu_memory_gb: Annotated[float | None, Strict(), Field(gt=0), Constraint("a number above 0, or null")] = (
        None
    )


@dataclass(frozen=True)
class RagR1Config:
    """The checked settings of the block `rag_r1:`."""

    protocol: Protocol
    #: Whether the prompt is that of the key `prompt`, and not that of the data set's rows.
    own_prompt: bool
    #: Becomes a Budget when the length of a row is known (`budget`).
    agent: EpisodeLimits
    #: `agent` with the keys that validation changes.
    validation_agent: EpisodeLimits
    #: The keys of the search tool, which checks them itself.
    retriever: dict[str, Any]
    #: `retriever` with the keys that validation changes.
    validation_retriever: dict[str, Any]
    tools: dict[str, Any]
    #: Entries that RewardSum checks.
    reward: tuple[Any, ...]
    failures: FailurePolicy
    guard: GuardOptions
    trajectory_dir: str | None
    probes: tuple[ValidationProbe, ...] = ()
    probe_passages: str | None = None
    trajectory_gzip: bool = False
    trajectory_tokens: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> RagR1Config:
        """Read the settings from plain values, as `OmegaConf.to_container(cfg.rag_r1, resolve=True)` gives
        them. Raises ValueError naming every wrong key."""
        settings, faults = cls.read(config)
        if len(faults) == 1:
            raise faults[0]
        if faults or settings is None:
            raise ValueError("; ".join(map(str, faults)))
        return settings

    @classmethod
    def read(cls, config: Mapping[str, Any] | None) -> tuple[RagR1Config | None, list[Exception]]:
        """Return the settings, and every fault as an exception that names the key.

        If there are faults, the settings serve further checks only: wrong values are replaced by their
        defaults, and the protocol is None if it cannot be loaded. The settings are None if `config` is not a
        mapping.
        """
        if not isinstance(config, Mapping):
            message = "the configuration has no mapping `rag_r1:`; build on one of the recipes"
            return None, [ValueError(message)]
        block, block_faults = read_options(_RagR1Block, config)
        wrong_keys = {fault.key for fault in block_faults}
        faults: list[Exception] = [*block_faults]

        def section(declared: type, values: Mapping[str, Any], *key: str) -> Any:
            section_options, section_faults = read_options(declared, values, *key)
            faults.extend(section_faults)
            return section_options

        protocol = None
        if "rag_r1.protocol" not in wrong_keys:
            try:
                protocol = _protocol(block)
            except ValueError as fault:
                faults.append(fault)
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
        passages_fault = _missing_passages(block)
        if passages_fault and passages_fault.key not in wrong_keys:
            faults.append(passages_fault)
        return settings, faults

    def check_paths(self) -> None:
        """Raise OptionFault if an episode is to have several `paths`, which a training does not support."""
        for section, limits in (("agent", self.agent), ("validation_agent", self.validation_agent)):
            if limits.paths > 1:
                key, count = f"rag_r1.{section}.paths", limits.paths
                reason = (
                    f"is {count}, but in a training each path is a sample with a reward of its own: "
                    f"set it to 1 and actor_rollout_ref.rollout.n={count}; `rag-r1 eval` plays several"
                )
                raise OptionFault(key, reason)

    def check_turns(self) -> None:
        """Raise OptionFault if an episode is to have fewer tokens than one turn may have."""
        for section, limits in (("agent", self.agent), ("validation_agent", self.validation_agent)):
            turn, total = limits.max_turn_tokens, limits.max_episode_tokens
            if total is not None and total < turn:
                reason = f"is {total}, but a turn may have max_turn_tokens={turn}: lower that, or raise this"
                raise OptionFault(f"rag_r1.{section}.max_episode_tokens", reason)

    def budget(self, max_response_tokens: int, *, validation: bool = False) -> Budget:
        """Return the limits of an episode whose row has at most `max_response_tokens`."""
        limits = self.validation_agent if validation else self.agent
        return Budget(**vars(limits), max_response_tokens=max_response_tokens)


@options("algorithm.filter_groups", others="ignore")
class FilterGroups:
    """The keys of veRL's block `algorithm.filter_groups` that our sampler reads. veRL checks the block."""

    enable: Flag = False
    #: `reward` or the name of a term; None: veRL's default.
    metric: Text | None = None
    #: The largest number of batches of prompts that a step generates; 0 or less: no limit.
    max_num_gen_batches: Annotated[int, Strict(), Constraint("a whole number")] | None = None
    #: The largest number of batches of prompts that wait or are being generated at a time.
    max_inflight_gen_batches: Count | None = None


def _filter_groups(value: Any) -> Any:
    """Convert a mapping or None to FilterGroups, and leave anything else for pydantic to refuse."""
    value = {} if value is None else value
    return options_from(FilterGroups, value) if isinstance(value, Mapping) else value


@options("trainer.v1.sampler.sampler_kwargs")
class SamplerOptions:
    """The keys under `trainer.v1.sampler.sampler_kwargs` (plugin/sampler.py, plugin/group_filter.py).

    Some are ours. The others are settings of veRL that it does not pass to a custom sampler.
    """

    #: Seconds between two checks for finished trajectories; None: veRL's default.
    poll_interval: Seconds | None = None
    #: How often a batch is generated again if failures have left nothing of it.
    refills: Count = 5
    #: Seconds before the first of these refills; the wait doubles each time.
    refill_wait_s: Seconds = 10.0
    #: The number of trajectories that a group should have; None if it is not known.
    group_size: PositiveCount | None = None
    #: The number of prompts in a batch; None if it is not known.
    train_batch_size: PositiveCount | None = None
    filter_groups: Annotated[
        FilterGroups, BeforeValidator(_filter_groups), Constraint("veRL's block algorithm.filter_groups")
    ] = FilterGroups()
    #: Whether groups are replaced if none of their trajectories arrived.
    sync_refill_failed_groups: Flag = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> SamplerOptions:
        """Read the keys from plain values. Raises OptionsError naming every unknown or wrong key."""
        return options_from(cls, config or {})


def find_faults(build: Callable[[dict[str, Any]], Any], options: Mapping[str, Any]) -> list[Exception]:
    """Return the faults that `build` finds in `options`: all faults in an OptionsError that it raises, or
    any other ValueError or TypeError as a single fault."""
    try:
        build(dict(options))
    except OptionsError as error:
        return list(error.faults)
    except (ValueError, TypeError) as fault:
        return [fault]
    return []


def _missing_passages(block: _RagR1Block) -> OptionFault | None:
    """Return the fault of a probe that shows passages although no file of passages is given; None if there
    is none."""
    probes = [probe for probe in block.probes if probe in SHOW_PASSAGES]
    if not probes or block.probe_passages is not None:
        return None
    reason = f"must be given for the probes {', '.join(probes)}: a file made with `rag-r1 probe-passages`"
    return OptionFault("rag_r1.probe_passages", reason)


def _protocol(block: _RagR1Block) -> Protocol:
    """Return the protocol with its prompt. Raises ValueError naming the key if it cannot be loaded."""
    if block.protocol is None:
        raise ValueError("rag_r1.protocol must be the name of a protocol, not None")
    try:
        load_protocol(block.protocol)  # alone, so that only the faults of the prompt are named by its key
    except ProtocolError as error:
        raise ValueError(f"rag_r1.protocol: {error}") from error
    return load_with_prompt(block.protocol, block.prompt, "rag_r1.prompt:")
