"""Checks that a run was produced by the configured agent.

The prefix of a trajectory is played back and the agent goes on from there, so another model, another budget
or another protocol would score continuations that this agent never has.
"""

from __future__ import annotations

from pathlib import Path

from rag_r1.config.agent_setup import AgentSetup
from rag_r1.rollouts import provenance_facts
from rag_r1.rollouts.provenance import Provenance, protocol_part
from rag_r1.runs.errors import RunError
from rag_r1.runs.settings import json_roundtrip, refuse_changes


def check_run(run: Path, model: str, setup: AgentSetup) -> None:
    """Raises RunError, with both values, if the model, the budget or the protocol of a run is another than
    the agent's. Models are compared by their files where both are known, else by the last part of their
    names."""
    try:
        card = Provenance.read(run)
        facts = provenance_facts.model_facts(Path(model) if Path(model).is_dir() else model)
    except (RunError, OSError) as error:
        raise RunError(f"--trajectories {run}: {error}") from error
    if card is None:
        message = f"--trajectories {run} has no provenance.json"
        raise RunError(f"{message}: give the folder of a finished `rag-r1 eval`")
    protocol = protocol_part(setup.protocol)
    compares_files = None not in (card.model.sha256, facts["sha256"])
    run_settings, agent_settings = (
        {
            **({"model sha256": digest} if compares_files else {"model": Path(name).name}),
            "protocol": part.name,
            "protocol sha256": part.sha256,
            **{f"budget.{limit}": value for limit, value in budget.items()},
        }
        for digest, name, part, budget in (
            (card.model.sha256, card.model.name, card.protocol, card.budget),
            (facts["sha256"], facts["name"], protocol, json_roundtrip(vars(setup.budget))),
        )
    )
    remedy = "Give the model, the protocol and the limits of that run, or leave --trajectories out"
    refuse_changes(f"--trajectories {run}", run_settings, agent_settings, remedy)
