"""The settings of the loops: sizes, limits, the recipe of each arm, and a hash of what all seeds share.

The hash (`runs_hash`) is stored with a run, so that runs made with different settings are not compared. What
the recipes inherit, the prompt and the number of requests in flight are not in it: after changing one of
these, choose another folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from examples.agentic_r.warm_start import PROTOCOL, RECIPE, warm_start_hash
from examples.agentic_r.world import TRAIN
from examples.common.comparison import short_hash
from rag_r1.config.recipes import RECIPES
from rag_r1.demo.eval_arguments import limit_keys
from rag_r1.demo.world import PROMPT_FILE
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.iterate.commands import query_keys
from rag_r1.protocols.retriever_query import Mode

#: Number of questions for the retriever's training data, and of held-out questions.
DATA_QUESTIONS, HELD_OUT = 150, 150
#: Number of passages that are scored for each search, and of negatives in each training row.
CANDIDATES, NEGATIVES = 6, 4
#: The recipe of the retriever's training.
RETRIEVER_RECIPE = RECIPES / "agentic_r" / "retriever_demo.yaml"


def runs_hash() -> str:
    """Return a short hash of the settings of a run besides its seed and its number of rounds.

    That is the hash of the warm start, the numbers of questions and passages, and the recipes. Only runs with
    the same hash are compared.
    """
    sizes = [DATA_QUESTIONS, HELD_OUT, CANDIDATES, NEGATIVES, TRAIN]
    recipes = [path.read_text(encoding="utf-8") for path in (RECIPE, RETRIEVER_RECIPE)]
    return short_hash([warm_start_hash(), sizes, recipes])


def arm_recipe(arm: str, seed: int, folder: Path, policy: Path, encoder: Path) -> dict[str, Any]:
    """Return the recipe of an arm for `rag-r1 iterate`; the control has no `data` and no `retriever`.

    `folder` is the seed's, `policy` the agent's warm start, and `encoder` the untrained encoder.
    """
    data = folder / "data"
    recipe: dict[str, Any] = {
        "agent": {
            "model": str(policy),
            "recipe": str(RECIPE),
            "start": "previous",
            "protocol": PROTOCOL,
            "keys": agent_keys(),
            "overrides": [
                f"data.train_files={data / 'train.parquet'}",
                f"data.val_files={data / 'val.parquet'}",
                # Each round shuffles the questions differently.
                f"data.seed={seed + 1}{{round}}",
            ],
        },
        "index": {
            "first": str(folder / "index"),
            "corpus": [str(data / "corpus.jsonl")],
            "options": {"device": "cpu"},
        },
        "server": {"options": ["--device", "cpu"]},
        "evaluation": {"questions": [str(data / "val.parquet")], "options": limits()},
    }
    if arm == "loop":
        recipe["data"] = {
            "questions": [str(data / "scored.parquet")],
            "options": limits() | {"candidates": CANDIDATES, "negatives": NEGATIVES, "seed": seed},
        }
        recipe["retriever"] = {
            "recipe": str(RETRIEVER_RECIPE),
            "options": {"model": str(encoder), "seed": seed},
            "query": "agentic",
        }
    return recipe


def limits() -> dict[str, Any]:
    """Return options of `rag-r1 eval` and `rag-r1 retriever data`: the demo's prompt, the recipe's limits,
    and the number of requests in flight."""
    data = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))["data"]
    return {
        "prompt": str(PROMPT_FILE),
        "max_prompt_tokens": data["max_prompt_length"],
        "max_response_tokens": data["max_response_length"],
        "in_flight": 32,
    }


def agent_keys() -> list[str]:
    """Return the keys of the recipe's block `rag_r1` that apply in training and in evaluation."""
    return limit_keys(yaml.safe_load(RECIPE.read_text(encoding="utf-8"))["rag_r1"])


def eval_arguments(
    policy: Path, policy_url: str, retriever_url: str, questions: Path, out: Path, query: Mode
) -> EvalArguments:
    """Return the arguments that evaluate a served policy as the loop does, with the same limits and keys."""
    return EvalArguments(
        model="policy",
        base_url=policy_url,
        tokenizer=str(policy),
        retriever_url=retriever_url,
        protocol=PROTOCOL,
        questions=[questions],
        out=out,
        overrides=[*agent_keys(), *query_keys(query)],
        **limits(),
    )
