"""Checks that the run given as `--trajectories` was produced by the configured agent.

A candidate is scored by replaying the beginning of a trajectory and letting the agent continue from there.
With another model, budget or protocol, the scores would be those of continuations that the configured agent
would never produce.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.rollouts import provenance_facts
from rag_r1.rollouts.provenance import ProtocolPart, Provenance, protocol_part
from rag_r1.runs.errors import RunError
from rag_r1.runs.settings import json_roundtrip, refuse_changes


def check_run(run: Path, model: str, setup: AgentSetup) -> None:
    """Raise RunError if the model, the budget or the protocol of a run differs from that of the agent.

    Models are compared by the hash of their files if both hashes are known, and otherwise by the last part of
    their names. The message has both values of each difference. Raises RunError as well if the run has no
    provenance, or if its provenance or the model cannot be read.
    """
    try:
        card = Provenance.read(run)
        facts = provenance_facts.model_facts(Path(model) if Path(model).is_dir() else model)
    except (RunError, OSError) as error:
        raise RunError(f"--trajectories {run}: {error}") from error
    if card is None:
        message = f"--trajectories {run} has no provenance.json"
        raise RunError(f"{message}: give the folder of a finished `rag-r1 eval`")
    if None not in (card.model.sha256, facts["sha256"]):
        run_model, agent_model = {"model sha256": card.model.sha256}, {"model sha256": facts["sha256"]}
    else:
        run_model, agent_model = {"model": Path(card.model.name).name}, {"model": Path(facts["name"]).name}
    budget = json_roundtrip(vars(setup.budget))
    run_settings = run_model | _settings(card.protocol, card.budget)
    agent_settings = agent_model | _settings(protocol_part(setup.protocol), budget)
    remedy = "Give the model, the protocol and the limits of that run, or leave --trajectories out"
    refuse_changes(f"--trajectories {run}", run_settings, agent_settings, remedy)


def _settings(protocol: ProtocolPart, budget: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compared settings of a protocol and a budget, under the names that the message uses."""
    limits = {f"budget.{limit}": value for limit, value in budget.items()}
    return {"protocol": protocol.name, "protocol sha256": protocol.sha256, **limits}
