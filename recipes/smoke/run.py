"""Runs the whole pipeline on RAG-R1's HotpotQA questions and a real corpus: data, index, server, training.

The steps are the commands that a user would run: `python -m data_process.hotpotqa_search_mq`, then
`rag-r1 index build` and `rag-r1 index serve`, then `rag-r1 train --recipe smoke/hotpotqa`. At the end
the dumped trajectories are checked: their number, their end status, and that they contain passages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from rag_r1.agent.records import read_records
from rag_r1.config.recipes import Recipe
from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import train
from rag_r1.demo.world import PROMPT_FILE
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, Overrides, argument, read_arguments
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process

RECIPE = "smoke/hotpotqa"
POLICY = policy_path("rag_r1_mq")
INDEX = {
    "bm25": ["--backend", "bm25"],
    "dense": ["--backend", "dense", "--encoder", "minilm", "--max-length", "128"],
}
FAILED = {"tool_failure", "engine_failure", "bad_row"}


class SmokeError(RuntimeError):
    """A step failed, or the trajectories are not as expected."""


@dataclass(frozen=True)
class Inputs:
    """The required files; `find` reports missing ones."""

    train: Path
    validation: Path
    corpus: Path

    @classmethod
    def find(cls, data: Path) -> Inputs:
        """The three files under the data folder. Raises SmokeError naming the missing ones."""
        questions = data / "rag_r1" / "hotpotqa_train_filter_mq"
        corpus = data / "corpus" / "hotpotqa_corpus.jsonl.gz"
        found = cls(questions / "train_data.json", questions / "test_data.json", corpus)
        missing = [str(path) for path in (found.train, found.validation, found.corpus) if not path.is_file()]
        if missing:
            raise SmokeError(
                f"the real data is missing: {', '.join(missing)}. Give its folder with --data or "
                "RAG_R1_DATA; README.md beside this script describes its contents"
            )
        return found


def data_folder() -> Path:
    """The data folder: $RAG_R1_DATA, or shared/data beside the project."""
    return Path(os.environ.get("RAG_R1_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def questions_to_parquet(inputs: Inputs, out: Path) -> Path:
    """Run data_process.hotpotqa_search_mq into `out`/data. Raises SmokeError with its output."""
    script = "data_process.hotpotqa_search_mq"
    command = [sys.executable, "-m", script, "--train", inputs.train, "--validation", inputs.validation]
    done = subprocess.run(
        [*map(str, command), "--prompt", str(PROMPT_FILE), "--out", str(out / "data")],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SmokeError(f"{script} failed:\n{done.stdout}{done.stderr}")
    return out / "data"


def make_index(inputs: Inputs, backend: str, out: Path) -> Path:
    """The index of the corpus in `out`; an existing one that is newer than the corpus is reused."""
    index = out / f"index-{backend}"
    if not (index / "manifest.json").is_file() or not _newer(index / "manifest.json", inputs.corpus):
        build_index(inputs.corpus, index, *INDEX[backend], "--overwrite", timeout_s=1800)
    return index


def smoke(
    inputs: Inputs, backend: str, out: Path, overrides: Sequence[str], timeout_s: float
) -> dict[str, Any]:
    """Run everything into `out`; returns the counts. Raises SmokeError, or the failed step's own error."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out / "trajectories", ignore_errors=True)
    print("1/4 questions to parquet")
    questions_to_parquet(inputs, out)
    print(f"2/4 {backend} index of {inputs.corpus.name}")
    index = make_index(inputs, backend, out)
    print("3/4 retrieval server")
    with retrieval_process(index, out / "server.log") as url:
        print(f"4/4 training; log: {out / 'train.log'}")
        command = [
            *(sys.executable, "-m", "rag_r1.cli", "train", "--recipe", RECIPE),
            f"actor_rollout_ref.model.path='{POLICY}'",
            f"data.train_files='{out / 'data' / 'train.parquet'}'",
            f"data.val_files='{out / 'data' / 'test.parquet'}'",
            f"rag_r1.retriever.url='{url}'",
            f"rag_r1.trajectory_dir='{out / 'trajectories'}'",
            f"trainer.default_local_dir='{out / 'checkpoints'}'",
            f"hydra.run.dir='{out / 'hydra'}'",
            *overrides,
        ]
        train(command, out, timeout_s)
    return check(out / "trajectories", expected_trajectories(overrides))


def _newer(path: Path, other: Path) -> bool:
    return path.stat().st_mtime > other.stat().st_mtime


def expected_trajectories(overrides: Sequence[str] = ()) -> dict[str, int]:
    """How many records the recipe writes: steps x questions x answers, and those of the validation."""
    recipe = yaml.safe_load(Recipe.find(RECIPE).path.read_text(encoding="utf-8"))
    given = dict(override.split("=", 1) for override in overrides)
    steps = int(given.get("trainer.total_training_steps", recipe["trainer"]["total_training_steps"]))
    batch = int(given.get("data.train_batch_size", recipe["data"]["train_batch_size"]))
    answers = int(given.get("actor_rollout_ref.rollout.n", recipe["actor_rollout_ref"]["rollout"]["n"]))
    validation = int(given.get("data.val_max_samples", recipe["data"]["val_max_samples"]))
    every = int(given.get("trainer.test_freq", recipe["trainer"]["test_freq"]))
    # One before training; then, if enabled, every `every` steps and after the last.
    validations = 1 + (-(-steps // every) if every > 0 else 0)
    return {"train": steps * batch * answers, "test": validations * validation}


def check(folder: Path, expected: dict[str, int]) -> dict[str, Any]:
    """Check the records. Raises SmokeError if their number, an end status or the passages are wrong."""
    records = {split: _records(folder / split) for split in expected}
    counted = {split: len(found) for split, found in records.items()}
    if counted != expected:
        raise SmokeError(f"{counted} trajectories were dumped where {expected} were expected")
    every = [record for found in records.values() for record in found]
    statuses = Counter(record["status"] for record in every)
    if FAILED & set(statuses):
        raise SmokeError(f"some trajectories failed: {dict(statuses)}; see train.log and server.log")
    calls = [call for record in every for turn in record["turns"] for call in turn["calls"]]
    documents = [document for call in calls for document in call["documents"] or []]
    if not documents:
        raise SmokeError("no search returned a passage, so retrieval was not tested")
    return {"trajectories": counted, "statuses": dict(statuses), "passages": len(documents)}


def _records(folder: Path) -> list[dict[str, Any]]:
    return list(read_records(*folder.glob("*.jsonl*")))


class SmokeArguments(Arguments):
    """Which data and index, and what is changed in the training."""

    data: Path | None = argument(
        "folder with rag_r1/ and corpus/ (default: $RAG_R1_DATA, or ../shared/data)", default=None
    )
    backend: Literal[tuple(sorted(INDEX))] = argument("of the index", default="bm25")
    out: Path | None = argument(
        "folder for everything that is written (default: outputs/smoke/BACKEND)", default=None
    )
    timeout: float = argument("of the training", "SECONDS", default=1200)
    overrides: Overrides = argument("Hydra overrides of the recipe smoke/hotpotqa", "key=value", default=[])


@command_main(RuntimeError)
def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if everything ran, 1 with the reason if not."""
    options = read_arguments(
        SmokeArguments,
        argv,
        prog="recipes/smoke/run.sh",
        description="Data processing, index, retrieval server and two GRPO steps on real data, on this CPU.",
    )
    out = (options.out or Path("outputs", "smoke") / options.backend).resolve()
    inputs = Inputs.find((options.data or data_folder()).resolve())
    counts = smoke(inputs, options.backend, out, options.overrides, options.timeout)
    print(f"smoke run with {options.backend}: everything ran. {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
