"""What is known of a run before it starts and needed while it runs, as plain values.

`rag-r1 train` reads it from the composed configuration and passes it on as JSON: to compose again, the
process that watches would import veRL and with it torch, 600 MB for the length of the training.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_r1.config.guard import GuardOptions
from rag_r1.options.declare import options_from
from rag_r1.training.guard.signs import TrainingFacts


@dataclass(frozen=True)
class WatchedRun:
    """The run in `folder` (`trainer.default_local_dir`, absolute). `rate`: the actor's learning rate;
    `records`: the folder of its trajectories; `checkpoints`: how many veRL keeps, None for all."""

    folder: Path
    options: GuardOptions
    facts: TrainingFacts
    rate: float
    records: Path | None = None
    checkpoints: int | None = None

    @classmethod
    def from_config(cls, config: Any) -> WatchedRun:
        """From a composed configuration."""
        from rag_r1.options.problems import plain

        records = config.rag_r1.get("trajectory_dir")
        return cls(
            Path(config.trainer.default_local_dir).expanduser().absolute(),
            options_from(GuardOptions, plain(config.rag_r1.get("guard")) or {}),
            training_facts(config),
            float(config.actor_rollout_ref.actor.optim.lr),
            Path(records).expanduser().absolute() if records else None,
            config.trainer.get("max_actor_ckpt_to_keep"),
        )

    @classmethod
    def from_json(cls, text: str) -> WatchedRun:
        """From what `to_json` made."""
        values = json.loads(text)
        paths = {name: values[name] and Path(values[name]) for name in ("folder", "records")}
        options = options_from(GuardOptions, values["options"])
        return cls(**{**values, **paths, "options": options, "facts": TrainingFacts(**values["facts"])})

    def to_json(self) -> str:
        """As a text in JSON."""
        return json.dumps(asdict(self), default=str)


def training_facts(config: Any) -> TrainingFacts:
    """What the rules need of a composed configuration."""
    from rag_r1.options.problems import plain

    terms = {}
    for entry in plain(config.rag_r1.get("reward")) or ():
        name = str(entry.get("name") or entry.get("term"))
        terms[name.rpartition(":")[2]] = float(entry.get("weight", 1.0))
    actor, correction = config.actor_rollout_ref.actor, config.algorithm.get("rollout_correction") or {}
    updates = (actor.get("ppo_epochs") or 1) * config.data.train_batch_size / actor.ppo_mini_batch_size
    # Of one update the ratio is 1 but for what the engine's log-probs differ.
    return TrainingFacts(
        terms,
        config.data.train_batch_size if config.data.get("shuffle") else None,
        bool(correction.get("bypass_mode")) and updates <= 1,
    )
