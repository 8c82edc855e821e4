"""Makes the warm starts of the memory experiment from scripted episodes.

The embedded policy of `rag_r1_sq` can already read, copy and search. Its tokenizer gets the tags of Agentic
RAG-R1's dialect and the few new words of the pages as additional tokens; a tag that has a counterpart in the
policy's own dialect starts with that tag's embedding. Then the policy is trained on scripted episodes
(traces.py), with the loss on the text of the script and, with a smaller weight, on names that it has read:

    base        in the dialect with a memory, with the script that makes no mistakes; it learns to read pages
    warm start  from the base, in one of the two protocols, with the script that often makes mistakes

Both protocols thus start from the same base, with the same script and number of steps. The budget is that of
the reinforcement learning that follows, so the contexts are the same, too. This takes minutes, once; the
policies are kept in the outputs folder, not in the repository.
"""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean

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
from rag_r1.demo.phase_trainer import TrainingPhase
from rag_r1.demo.pipeline.pretraining_data import name_tokens
from rag_r1.demo.policy import load_policy, policy_path
from rag_r1.demo.search import WorldSearch
from rag_r1.demo.simulate import run_rollouts, scores_by_kind
from rag_r1.demo.world import PROMPT, DemoData
from rag_r1.protocols import Protocol, load_protocol

#: The embedded policy from which the base is made, and the protocol that the base learns.
EMBEDDED, BASE_PROTOCOL = "rag_r1_sq", "agentic_rag_en"
#: The trainings of the base and of a warm start.
BASE = TrainingPhase(steps=480, warmup=10, lr=2e-3, matrix_lr=4e-3)
WARM = TrainingPhase(steps=120, warmup=5, lr=1e-3, matrix_lr=1e-3)


def memory_protocol(name: str) -> Protocol:
    """Load a protocol with the demo's prompt; `name` is that of a shipped protocol or a file of the demo."""
    return load_protocol(str(protocol_file(name)) if name.endswith(".yaml") else name, PROMPT)


def protocol_file(name: str) -> Path:
    """Return the file of a protocol in `rag_r1/demo`, which a recipe names by its path in the repository."""
    return Path(demo.__file__).parent / Path(name).name


def memory_budget() -> Budget:
    """Return the limits of an episode in the recipes of the experiment (recipes/demo/_memory.yaml)."""
    return recipe_budget(RECIPES / "demo" / "_memory.yaml")


def warm_start_hash() -> str:
    """Return a short hash of the settings on which the warm starts depend and that experiments change.

    These are the form of the world's pages, the rates of the scripts, and the phases of the training. The
    embedded policy, the protocols and the recipe's limits are not in it.
    """
    pages = fresh_pages(random.Random(0)).world.passages
    return short_hash([pages, MIXED, RIGHT, vars(BASE), vars(WARM)], sort_keys=True)


def memory_base(folder: Path, seed: int = 0, phase: TrainingPhase = BASE) -> Path:
    """Make the base of both warm starts in `folder`, unless it exists; returns the folder."""
    if (folder / "config.json").exists():
        return folder
    protocol = memory_protocol(BASE_PROTOCOL)
    return _train_phase(folder, *add_memory_tokens(protocol), protocol, RIGHT, phase, f"base-{seed}")


def warm_start(
    folder: Path, protocol: Protocol, base: Path, seed: int = 0, phase: TrainingPhase = WARM
) -> Path:
    """Make the warm start of a protocol from the base in `folder`, unless it exists; returns the folder."""
    if (folder / "config.json").exists():
        return folder
    return _train_phase(folder, *load_policy(base), protocol, MIXED, phase, f"warm-{seed}")


def _train_phase(
    folder: Path,
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    protocol: Protocol,
    rates: BehaviourRates,
    phase: TrainingPhase,
    seed: str,
) -> Path:
    """Train a model on scripted episodes in a protocol and write it into `folder`; returns the folder."""
    setup = memory_setup(tokenizer, protocol)
    # The years are left out: most of them are in the lists of the pages, which are not worth learning.
    names = name_tokens(tokenizer) - set(tokenizer.convert_tokens_to_ids([f" {year}" for year in YEARS]))
    return train_policy(
        folder,
        model,
        tokenizer,
        phase,
        lambda step: [loss_weights(row, names) for row in scripted_rows(setup, rates, seed, step)],
    )


def add_memory_tokens(protocol: Protocol) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerBase]:
    """Return the embedded policy and its tokenizer, with tokens for the protocol's tags and pages' words."""
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
        for tag, base_tag in _tag_pairs(protocol):
            weights[ids[tag]] = weights[ids[base_tag]]
    return model, tokenizer


def _tag_pairs(protocol: Protocol) -> list[tuple[str, str]]:
    """Return pairs (tag of the protocol, tag of the embedded policy) for the blocks of every protocol."""
    new, embedded = protocol.tags, load_protocol(EMBEDDED).tags
    blocks = zip(vars(new).values(), vars(embedded).values(), strict=True)
    return [pair for block, base in blocks for pair in ((block.open, base.open), (block.close, base.close))]


def memory_setup(tokenizer: PreTrainedTokenizerBase, protocol: Protocol) -> AgentSetup:
    """Return the agent of the recipes with a placeholder search; the caller replaces its tools."""
    return script_setup(tokenizer, protocol, memory_budget())


def measure_memory(
    policy: Path, protocol: Protocol, data: DemoData, questions: int
) -> dict[str, dict[str, float]]:
    """Measure a policy on held-out questions in plain torch, `greedy` and `sampled` at temperature 1.

    Returns, for each, exact match by kind and the shares of episodes with a summary, with a backtrack, with
    an invalid turn, and without an answer because the context was full.
    """
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
            role: fmean(any(turn.action == role for turn in episode.turns) for episode in episodes)
            for role in ("summary", "backtrack", "invalid")
        }
        full = fmean(episode.status == "token_limit" for episode in episodes)
        results[name] = {**scores_by_kind(rollouts), **shares, "token limit": full}
    return results
