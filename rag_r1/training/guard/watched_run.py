"""What the process that watches a training has to know about its configuration, as plain values.

`rag-r1 train` reads these values from the composed configuration and passes them to the watching process as
JSON (launch.py). That process could not compose the configuration cheaply: it would import veRL and with it
torch, and hold 600 MB of memory during the whole training.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_r1.config.guard import GuardOptions
from rag_r1.options.from_config import options_from
from rag_r1.options.problems import plain
from rag_r1.training.config_facts import is_asynchronous
from rag_r1.training.guard.signs import TrainingFacts


@dataclass(frozen=True)
class WatchedRun:
    """A run that is watched or supervised."""

    #: The absolute path of `trainer.default_local_dir`.
    folder: Path
    options: GuardOptions
    facts: TrainingFacts
    #: The actor's learning rate.
    rate: float
    #: The folder of the trajectory records; None if none are written.
    records: Path | None = None
    #: How many checkpoints veRL keeps; None for all.
    checkpoints: int | None = None

    @classmethod
    def from_config(cls, config: Any) -> WatchedRun:
        """Read the run from a composed configuration, which the preflight has passed. Raises OptionsError for
        wrong keys under `rag_r1.guard`."""
        records = config.rag_r1.get("trajectory_dir")
        return cls(
            folder=Path(config.trainer.default_local_dir).expanduser().absolute(),
            options=options_from(GuardOptions, plain(config.rag_r1.get("guard")) or {}),
            facts=training_facts(config),
            rate=float(config.actor_rollout_ref.actor.optim.lr),
            records=Path(records).expanduser().absolute() if records else None,
            checkpoints=config.trainer.get("max_actor_ckpt_to_keep"),
        )

    @classmethod
    def from_json(cls, text: str) -> WatchedRun:
        """Read the run that `to_json` wrote."""
        values = json.loads(text)
        paths = {name: values[name] and Path(values[name]) for name in ("folder", "records")}
        options = options_from(GuardOptions, values["options"])
        return cls(**{**values, **paths, "options": options, "facts": TrainingFacts(**values["facts"])})

    def to_json(self) -> str:
        """Return the run in JSON, for `from_json`."""
        return json.dumps(asdict(self), default=str)


def training_facts(config: Any) -> TrainingFacts:
    """Read what the guard's rules need from a composed configuration."""
    terms = {}
    for entry in plain(config.rag_r1.get("reward")) or ():
        name = str(entry.get("name") or entry.get("term"))
        terms[name.rpartition(":")[2]] = float(entry.get("weight", 1.0))
    actor = config.actor_rollout_ref.actor
    correction = config.algorithm.get("rollout_correction") or {}
    updates = (actor.get("ppo_epochs") or 1) * config.data.train_batch_size / actor.ppo_mini_batch_size
    return TrainingFacts(
        terms=terms,
        questions=config.data.train_batch_size if config.data.get("shuffle") else None,
        # With one update the policy has not moved, so only differences to the engine's log-probs are left.
        is_first_kl_zero=bool(correction.get("bypass_mode")) and updates <= 1,
        is_asynchronous=is_asynchronous(config),
    )
