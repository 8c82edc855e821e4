"""Checks that a run was produced by the configured agent.

The prefix of a trajectory is played back and the agent goes on from there, so another model, another budget
or another protocol would score continuations that this agent never has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.rollouts import provenance_facts
from rag_r1.rollouts.provenance import Provenance, protocol_part
from rag_r1.rollouts.provenance_facts import ProvenanceError
from rag_r1.runs.errors import RunError
from rag_r1.runs.folder import json_roundtrip


def check_run(run: Path, model: str, setup: AgentSetup) -> None:
    """Raises RunError, with both values, if model, budget or protocol of a run are others than the agent's.
    Models are compared by their files where both are known, else by the last part of their names."""
    try:
        card = Provenance.read(run)
        own = provenance_facts.model_facts(Path(model) if Path(model).is_dir() else model)
    except (ProvenanceError, OSError) as error:
        raise RunError(f"--trajectories {run}: {error}") from error
    if card is None:
        raise RunError(f"--trajectories {run} has no card.json: give the folder of a finished `rag-r1 eval`")
    protocol = protocol_part(setup.protocol)
    by_files = None not in (card.model.sha256, own["sha256"])
    pairs: list[tuple[str, Any, Any]] = [
        ("model sha256", card.model.sha256, own["sha256"])
        if by_files
        else ("model", Path(card.model.name).name, Path(own["name"]).name),
        ("protocol", card.protocol.name, protocol.name),
        ("protocol sha256", card.protocol.sha256, protocol.sha256),
    ]
    budget = json_roundtrip(vars(setup.budget))
    names = dict.fromkeys([*card.budget, *budget])
    pairs += [(f"budget.{name}", card.budget.get(name), budget.get(name)) for name in names]
    if wrong := [f"{name} was {was!r} and is now {now!r}" for name, was, now in pairs if was != now]:
        raise RunError(
            f"--trajectories {run} was played by another agent: {'; '.join(wrong)}. Give the model, the "
            "protocol and the limits that it was played with, or leave --trajectories out"
        )
