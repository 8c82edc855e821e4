"""Makes the warm starts of the memory experiment from scripted episodes.

The embedded policy of `rag_r1_sq` can read, copy and search already. Its tokenizer gets the tags of Agentic
RAG-R1's dialect and the few new words of the pages as further tokens; the tags that mean the same start with
the embeddings of its own. Then it is trained on scripted episodes (traces.py), with the loss on what
the script wrote and, with a smaller weight, on names that it read before:

    base        in the dialect with a memory, by the script that does everything right: to read the pages
    warm start  from the base, in one of the two protocols, by the script that often does the wrong thing

So both protocols start from the same base, and get the same script and number of steps. The contexts are
those of the training that follows, because the budget is. It takes minutes, once: the policies are kept in
the outputs folder, not in the repository.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from examples.common.comparison import short_hash
from examples.common.scripted_episodes import recipe_budget, script_setup
from examples.common.scripted_sft import loss_weights, train_policy
from examples.memory.traces import MIXED, RIGHT, BehaviourRates, scripted_rows
from examples.memory.world import fresh_pages
from rag_r1 import demo
from rag_r1.agent import Budget
from rag_r1.config.agent_setup import AgentSetup
from rag_r1.config.recipes import RECIPES
from rag_r1.demo.names import YEARS
from rag_r1.demo.phase_trainer import Row, TrainingPhase
from rag_r1.demo.pipeline.pretraining_data import name_tokens
from rag_r1.demo.policy import load_policy, policy_path
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.simulate import run_rollouts, scores_by_kind
from rag_r1.demo.world import PROMPT, DemoData
from rag_r1.protocols import Protocol, load_protocol

#: The embedded policy from which the base is made, and the protocol that the base learns.
EMBEDDED, BASE_PROTOCOL = "rag_r1_sq", "agentic_rag_en"
BASE = TrainingPhase(steps=480, warmup=10, lr=2e-3, matrix_lr=4e-3)
WARM = TrainingPhase(steps=120, warmup=5, lr=1e-3, matrix_lr=1e-3)


def memory_protocol(name: str) -> Protocol:
    """A protocol of the recipes, by name or as a file of this package, with the demo's prompt."""
    return load_protocol(str(protocol_file(name)) if name.endswith(".yaml") else name, PROMPT)


def protocol_file(name: str) -> Path:
    """The file of a protocol of this package that a recipe names by its path in the repository."""
    return Path(demo.__file__).parent / Path(name).name


def memory_budget() -> Budget:
    """The limits of an episode in the recipes of the experiment (recipes/demo/_memory.yaml)."""
    return recipe_budget(RECIPES / "demo" / "_memory.yaml")


def warm_start_hash() -> str:
    """A short hash of what the warm starts depend on: the form of the world's pages, the scripts, and the
    phases of their training."""
    pages = fresh_pages(random.Random(0)).world.passages
    return short_hash([pages, MIXED, RIGHT, vars(BASE), vars(WARM)], sort_keys=True)


def memory_base(folder: Path, seed: int = 0, phase: TrainingPhase = BASE) -> Path:
    """Write the base of both warm starts into `folder`, if it is not there yet; returns the folder."""
    if (folder / "config.json").exists():
        return folder
    protocol = memory_protocol(BASE_PROTOCOL)
    return _train_phase(folder, *add_memory_tokens(protocol), protocol, RIGHT, phase, f"base-{seed}")


def warm_start(
    folder: Path, protocol: Protocol, base: Path, seed: int = 0, phase: TrainingPhase = WARM
) -> Path:
    """Write the warm start of a protocol, made from the base, into `folder`, if it is not there yet; returns
    the folder."""
    if (folder / "config.json").exists():
        return folder
    return _train_phase(folder, *load_policy(base), protocol, MIXED, phase, f"warm-{seed}")


def _train_phase(
    folder: Path,
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    protocol: Protocol,
    habits: BehaviourRates,
    phase: TrainingPhase,
    seed: str,
) -> Path:
    """Train a model on scripted episodes in a protocol and write it into `folder`; returns the folder."""
    setup = memory_setup(tokenizer, protocol)
    # Without the years, most of which are in the lists of the pages.
    names = name_tokens(tokenizer) - set(tokenizer.convert_tokens_to_ids([f" {year}" for year in YEARS]))
    return train_policy(
        folder, model, tokenizer, phase, lambda step: weighted_rows(setup, habits, seed, step, names)
    )


def add_memory_tokens(protocol: Protocol) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerBase]:
    """The embedded policy with tokens for the protocol's tags and the pages' words."""
    model, tokenizer = load_policy(policy_path(EMBEDDED))
    tool = protocol.queries.names[0][0]
    tags = [tag for block in protocol.blocks for tag in (block.open, block.close)]
    new_tokens = [*tags, f" [{tool}]:", "List", " see"]
    vocabulary = tokenizer.get_vocab()
    missing = [text for text in new_tokens if text not in vocabulary]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in missing])
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    weights = model.get_input_embeddings().weight.data
    ids = tokenizer.get_vocab()
    with torch.no_grad():
        for ours, base in _tag_pairs(protocol):
            weights[ids[ours]] = weights[ids[base]]
    return model, tokenizer


def _tag_pairs(protocol: Protocol) -> list[tuple[str, str]]:
    """The pairs (tag of the protocol, tag of the embedded policy's) for the four blocks that each protocol
    has."""
    ours, base = protocol.tags, load_protocol(EMBEDDED).tags
    pairs = zip(vars(ours).values(), vars(base).values(), strict=True)
    return [pair for a, b in pairs for pair in ((a.open, b.open), (a.close, b.close))]


def memory_setup(tokenizer: PreTrainedTokenizerBase, protocol: Protocol) -> AgentSetup:
    """The agent of the recipes, with a search that finds nothing: the caller replaces its tools."""
    return script_setup(tokenizer, protocol, memory_budget())


def weighted_rows(
    setup: AgentSetup, habits: BehaviourRates, seed: str, step: int, names: frozenset[int] = frozenset()
) -> list[Row]:
    """The rows of a step's scripted episodes, with the weights of their tokens in the loss."""
    return [loss_weights(row, names) for row in scripted_rows(setup, habits, seed, step)]


def measure_memory(
    policy: Path, protocol: Protocol, data: DemoData, questions: int
) -> dict[str, dict[str, float]]:
    """Measure a policy in plain torch, `greedy` and `sampled` at temperature 1: exact match on held-out
    questions by kind, and the shares of episodes with a summary, with a backtrack, with an invalid turn, and
    without an answer because the context was full."""
    model, tokenizer = load_policy(policy)
    search = WorldSearch(data.passages, topk=1)
    torch.manual_seed(0)
    results = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        rollouts = run_rollouts(
            model, tokenizer, protocol, data.val[:questions], search, temperature, memory_budget()
        )
        episodes = [rollout.trajectory for rollout in rollouts]
        shares = {
            role: sum(any(turn.action == role for turn in e.turns) for e in episodes) / len(episodes)
            for role in ("summary", "backtrack", "invalid")
        }
        full = sum(episode.status == "token_limit" for episode in episodes) / len(episodes)
        results[name] = {**scores_by_kind(rollouts), **shares, "token limit": full}
    return results
