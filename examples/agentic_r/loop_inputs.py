"""Makes the inputs of the loops of a seed: the agent's warm start, an encoder, a world and its first index.

Each input is made once and then only read. The warm start and the untrained encoder serve all seeds; every
seed has its world and the index of that world. `LoopInputs.write_recipe` writes the recipe of an arm, which
`rag-r1 iterate` reads. A short hash of a run's settings (`runs_hash`) is stored with it, so that runs made
with different ones are never compared.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from examples.agentic_r.warm_start import PROTOCOL, RECIPE, protocol, warm_start, warm_start_hash
from examples.agentic_r.world import TRAIN, MisleadingWorld, misleading_data, write_misleading_data
from examples.common.comparison import short_hash
from examples.common.small_encoder import make_encoder
from rag_r1.config.recipes import RECIPES
from rag_r1.demo.eval_spec import limit_keys
from rag_r1.demo.world import PROMPT_FILE, DemoData
from rag_r1.evaluation.eval_arguments import EvalArguments
from rag_r1.io.atomic_files import write_text
from rag_r1.iterate.commands import query_keys
from rag_r1.protocols.retriever_query import Mode
from rag_r1.retriever.training.options import read_recipe
from rag_r1.runs.settings import refuse_changes
from rag_r1.tools.retrieval.local_server import build_index

#: Number of questions for the retriever's training data, and of held-out questions.
DATA_QUESTIONS, HELD_OUT = 150, 150
#: Number of passages that are scored for each search, and of negatives in each training row.
CANDIDATES, NEGATIVES = 6, 4
RETRIEVER_RECIPE = RECIPES / "agentic_r" / "retriever_demo.yaml"


def runs_hash() -> str:
    """Return a short hash of the settings of a run besides its seed and its number of rounds.

    That is the hash of the warm start, the numbers of questions and passages, and the recipes. Only runs with
    the same hash are compared.
    """
    sizes = [DATA_QUESTIONS, HELD_OUT, CANDIDATES, NEGATIVES, TRAIN]
    recipes = [path.read_text(encoding="utf-8") for path in (RECIPE, RETRIEVER_RECIPE)]
    return short_hash([warm_start_hash(), sizes, recipes])


@dataclass(frozen=True)
class LoopInputs:
    """The inputs of the loops of a seed."""

    #: The seed's folder, with its data, index, loops and variants.
    folder: Path
    #: The agent's warm start.
    policy: Path
    #: The untrained encoder.
    encoder: Path

    @classmethod
    def make(cls, out: Path, seed: int) -> LoopInputs:
        """Make those inputs of a seed that are missing in `out`, and return all of them.

        Raises RunError if the seed's folder was made with another `runs_hash`.
        """
        folder = (out / f"seed{seed}").resolve()
        hash_file = folder / "made_of"
        if hash_file.exists():
            earlier_hash = hash_file.read_text(encoding="utf-8").strip()
            refuse_changes(folder, {"made_of": earlier_hash}, {"made_of": runs_hash()})
        policy = warm_start(out / f"warm-{warm_start_hash()}")
        encoder = make_encoder(out / "encoder")
        if not hash_file.exists():
            write_misleading_data(folder / "data", protocol(), seed, DATA_QUESTIONS, HELD_OUT)
            write_text(hash_file, f"{runs_hash()}\n")
        if not (folder / "index" / "manifest.json").exists():
            shutil.rmtree(folder / "index", ignore_errors=True)
            options = ("--backend", "dense", "--encoder", str(encoder), "--device", "cpu")
            build_index(folder / "data" / "corpus.jsonl", folder / "index", *options)
        return cls(folder, policy.resolve(), encoder.resolve())

    def write_recipe(self, arm: str, seed: int) -> Path:
        """Write the recipe of an arm and return its path."""
        path = self.folder / f"{arm}.yaml"
        write_text(path, yaml.safe_dump(self.plan(arm, seed), sort_keys=False))
        return path

    def plan(self, arm: str, seed: int) -> dict[str, Any]:
        """Return the recipe of an arm for `rag-r1 iterate`; the control has no `data` and no `retriever`."""
        data = self.folder / "data"
        plan: dict[str, Any] = {
            "agent": {
                "model": str(self.policy),
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
                "first": str(self.folder / "index"),
                "corpus": [str(data / "corpus.jsonl")],
                "options": {"device": "cpu"},
            },
            "server": {"options": ["--device", "cpu"]},
            "evaluation": {"questions": [str(data / "val.parquet")], "options": limits()},
        }
        if arm == "loop":
            plan["data"] = {
                "questions": [str(data / "scored.parquet")],
                "options": limits() | {"candidates": CANDIDATES, "negatives": NEGATIVES, "seed": seed},
            }
            plan["retriever"] = {
                "recipe": str(RETRIEVER_RECIPE),
                "options": {"model": str(self.encoder), "seed": seed},
                "query": "agentic",
            }
        return plan


def limits() -> dict[str, Any]:
    """Return options of `rag-r1 eval` and `rag-r1 retriever data`: the demo's prompt, the recipe's limits."""
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


def encoder_options(inputs: LoopInputs, seed: int) -> dict[str, Any]:
    """Return the options of `rag-r1 retriever train`: the recipe's, with this encoder and seed."""
    return {**read_recipe(str(RETRIEVER_RECIPE)), "model": str(inputs.encoder), "seed": seed}


def worlds(seed: int) -> tuple[DemoData, MisleadingWorld, MisleadingWorld]:
    """Return the data of a seed, its train world and its test world."""
    return misleading_data(seed, DATA_QUESTIONS, HELD_OUT)
