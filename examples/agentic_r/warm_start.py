"""Makes the agent's warm start in the misleading world from scripted episodes.

The embedded policy of `rag_r1_sq` can already read, copy and search, with two passages for each search. Here
a search returns one passage, so that the retriever has to rank the right one first. The policy is trained on
scripted episodes (traces.py): first (`BASE`) on those of the script that makes no mistakes (`RIGHT`), then
(`WARM`) on those of the script that makes many (`MIXED`), so that reinforcement learning has something to
improve. This takes some minutes, once; the policy is kept in the outputs folder, not in the repository.
"""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

from examples.agentic_r.traces import GOLD_SHARE, MIXED, RIGHT, BehaviourRates, scripted_rows
from examples.agentic_r.world import draw_questions, fresh_misleading_world
from examples.common.comparison import short_hash
from examples.common.scripted_episodes import recipe_budget, script_setup
from examples.common.scripted_sft import loss_weights, train_policy
from rag_r1.agent import Budget
from rag_r1.config.recipes import RECIPES
from rag_r1.demo.phase_trainer import TrainingPhase
from rag_r1.demo.pipeline.pretraining_data import name_tokens
from rag_r1.demo.policy import load_policy, policy_path
from rag_r1.demo.world import demo_protocol
from rag_r1.protocols import Protocol

#: The agent's protocol, also that of the embedded policy from which the training starts.
PROTOCOL = "rag_r1_sq"
#: The recipe whose limits the scripted episodes have.
RECIPE = RECIPES / "agentic_r" / "agent_demo.yaml"
#: The two phases of the training, on episodes without and with mistakes.
BASE = TrainingPhase(steps=420, warmup=10, lr=1.5e-3, matrix_lr=3e-3)
WARM = TrainingPhase(steps=80, warmup=5, lr=7e-4, matrix_lr=7e-4)


def warm_start_hash() -> str:
    """Return a short hash of the settings on which the warm start depends and that experiments change.

    These are the form of the world and the questions, the script's rates, and the phases of the training. The
    embedded policy, the protocol and the recipe's limits are not in it.
    """
    world = fresh_misleading_world(random.Random(0))  # the same sample of worlds and questions each time
    questions = [question.text for question in draw_questions(world.world, 24, 0)]
    rates = [GOLD_SHARE, asdict(MIXED), asdict(RIGHT)]
    return short_hash([world.world.passages, questions, rates, asdict(BASE), asdict(WARM)])


def warm_start(folder: Path, base: TrainingPhase = BASE, warm: TrainingPhase = WARM) -> Path:
    """Make the warm start in `folder`, unless it exists, and return the folder."""
    if (folder / "config.json").exists():
        return folder
    base_folder = folder.with_name(f"{folder.name}-base")
    _train_phase(base_folder, policy_path(PROTOCOL), RIGHT, base, "base")
    return _train_phase(folder, base_folder, MIXED, warm, "warm")


def budget() -> Budget:
    """Return the limits of an episode in the recipe."""
    return recipe_budget(RECIPE)


def protocol() -> Protocol:
    """Return the agent's protocol with the demo's prompt."""
    return demo_protocol(PROTOCOL)


def _train_phase(folder: Path, start: Path, rates: BehaviourRates, phase: TrainingPhase, seed: str) -> Path:
    """Train the policy in `start` on scripted episodes and write it into `folder`, unless that exists.

    Returns `folder`.
    """
    if (folder / "config.json").exists():
        return folder
    model, tokenizer = load_policy(start)
    setup = script_setup(tokenizer, protocol(), budget())
    names = name_tokens(tokenizer)
    return train_policy(
        folder,
        model,
        tokenizer,
        phase,
        lambda step: [loss_weights(row, names) for row in scripted_rows(setup, rates, seed, step)],
    )
