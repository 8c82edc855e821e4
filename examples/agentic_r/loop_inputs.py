"""Makes the inputs of the loops of a seed: the agent's warm start, an encoder, a world and its first index.

Each input is made once and then only read. The warm start and the untrained encoder serve all seeds; every
seed has its world and the index of that world. `LoopInputs.write_recipe` writes the recipe of an arm, which
`rag-r1 iterate` reads.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

from examples.agentic_r.loop_settings import DATA_QUESTIONS, HELD_OUT, arm_recipe, runs_hash
from examples.agentic_r.warm_start import protocol, warm_start, warm_start_hash
from examples.agentic_r.world import MisleadingWorld, misleading_data, write_misleading_data
from examples.common.small_encoder import make_encoder
from rag_r1.demo.world import DemoData
from rag_r1.io.atomic_files import write_text
from rag_r1.runs.settings import refuse_changes
from rag_r1.tools.retrieval.local_server import build_index


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

        Raises RunError if the seed's folder was made with another `runs_hash`, or if the index is not built.
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
        recipe = arm_recipe(arm, seed, self.folder, self.policy, self.encoder)
        write_text(path, yaml.safe_dump(recipe, sort_keys=False))
        return path


def worlds(seed: int) -> tuple[DemoData, MisleadingWorld, MisleadingWorld]:
    """Return the data of a seed, its train world and its test world."""
    return misleading_data(seed, DATA_QUESTIONS, HELD_OUT)
