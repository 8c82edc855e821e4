"""Runs the whole pipeline on RAG-R1's HotpotQA questions and a real corpus: data, index, server, training.

The steps are the commands that a user would run: `python -m data_process.hotpotqa_search_mq`, then
`rag-r1 index build` and `rag-r1 index serve`, then `rag-r1 train --recipe smoke/hotpotqa`. At the end the
recorded trajectories are checked: their number, their status, and that they contain passages.
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
from rag_r1.agent.trajectory import FAILURE_STATUSES
from rag_r1.config.recipes import Recipe
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import PROMPT_FILE
from rag_r1.options.arguments.overrides import Overrides, hydra_quoted
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from rag_r1.training.progress import train

RECIPE = "smoke/hotpotqa"
POLICY = policy_path("rag_r1_mq")
#: Back end -> the options of `rag-r1 index build`.
INDEX = {
    "bm25": ["--backend", "bm25"],
    "dense": ["--backend", "dense", "--encoder", "minilm", "--max-length", "128"],
}


class SmokeError(RuntimeError):
    """Raised if data are missing, a step fails, or the trajectories are not as expected."""


@dataclass(frozen=True)
class Inputs:
    """The files that the run reads: questions for training and validation, and the passages."""

    train: Path
    validation: Path
    corpus: Path

    @classmethod
    def find(cls, data: Path) -> Inputs:
        """Return the files in the folder `data`. Raises SmokeError naming those that are missing."""
        questions = data / "rag_r1" / "hotpotqa_train_filter_mq"
        corpus = data / "corpus" / "hotpotqa_corpus.jsonl.gz"
        inputs = cls(questions / "train_data.json", questions / "test_data.json", corpus)
        paths = (inputs.train, inputs.validation, inputs.corpus)
        missing = [str(path) for path in paths if not path.is_file()]
        if missing:
            raise SmokeError(
                f"the real data is missing: {', '.join(missing)}. Give its folder with --data or "
                "RAG_R1_DATA; README.md beside this script describes its contents"
            )
        return inputs


def data_folder() -> Path:
    """Return the folder of the data: $RAG_R1_DATA, or shared/data beside the project's folder."""
    return Path(os.environ.get("RAG_R1_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def questions_to_parquet(inputs: Inputs, out: Path) -> Path:
    """Convert the questions with data_process.hotpotqa_search_mq, and return the folder of the files,
    `out`/data. Raises SmokeError with the command's output if it fails."""
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
    """Return the index of the corpus in `out`, which is built unless it is newer than the corpus. Raises
    RunError if building fails."""
    index = out / f"index-{backend}"
    if not (index / "manifest.json").is_file() or not _newer(index / "manifest.json", inputs.corpus):
        build_index(inputs.corpus, index, *INDEX[backend], "--overwrite", timeout_s=1800)
    return index


def smoke(
    inputs: Inputs, backend: str, out: Path, overrides: Sequence[str], timeout_s: float
) -> dict[str, Any]:
    """Run all steps, with their files in `out`; returns what `check` counts. `overrides` are Hydra's, and
    `timeout_s` limits the training, in seconds. Raises SmokeError, the RunError of a step that fails, or
    OSError if a file cannot be written."""
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
            f"actor_rollout_ref.model.path={hydra_quoted(POLICY)}",
            f"data.train_files={hydra_quoted(out / 'data' / 'train.parquet')}",
            f"data.val_files={hydra_quoted(out / 'data' / 'test.parquet')}",
            f"rag_r1.retriever.url={url}",
            f"rag_r1.trajectory_dir={hydra_quoted(out / 'trajectories')}",
            f"trainer.default_local_dir={hydra_quoted(out / 'checkpoints')}",
            f"hydra.run.dir={hydra_quoted(out / 'hydra')}",
            *overrides,
        ]
        train(command, out, timeout_s)
    return check(out / "trajectories", expected_trajectories(overrides))


def _newer(path: Path, other: Path) -> bool:
    return path.stat().st_mtime > other.stat().st_mtime


def expected_trajectories(overrides: Sequence[str] = ()) -> dict[str, int]:
    """Return the number of records by split: steps x questions x answers in training, and those of the
    validations."""
    recipe = yaml.safe_load(Recipe.find(RECIPE).path.read_text(encoding="utf-8"))
    changes = dict(override.lstrip("+").partition("=")[::2] for override in overrides)
    steps = int(changes.get("trainer.total_training_steps", recipe["trainer"]["total_training_steps"]))
    batch = int(changes.get("data.train_batch_size", recipe["data"]["train_batch_size"]))
    answers = int(changes.get("actor_rollout_ref.rollout.n", recipe["actor_rollout_ref"]["rollout"]["n"]))
    questions = int(changes.get("data.val_max_samples", recipe["data"]["val_max_samples"]))
    interval = int(changes.get("trainer.test_freq", recipe["trainer"]["test_freq"]))
    # One before training; then, if enabled, one after each interval and after the last step.
    validations = 1 + (-(-steps // interval) if interval > 0 else 0)
    return {"train": steps * batch * answers, "test": validations * questions}


def check(folder: Path, expected: dict[str, int]) -> dict[str, Any]:
    """Check the records in a folder, and return the number of trajectories by split and by status, and of
    passages. Raises SmokeError if the numbers by split are not the expected ones, if a trajectory failed, or
    if no search returned a passage."""
    by_split = {split: list(read_records(*(folder / split).glob("*.jsonl*"))) for split in expected}
    counts = {split: len(records) for split, records in by_split.items()}
    if counts != expected:
        raise SmokeError(f"{counts} trajectories were recorded, but {expected} were expected")
    all_records = [record for records in by_split.values() for record in records]
    statuses = Counter(record["status"] for record in all_records)
    if set(FAILURE_STATUSES) & set(statuses):
        raise SmokeError(f"some trajectories failed: {dict(statuses)}; see train.log and server.log")
    calls = [call for record in all_records for turn in record["turns"] for call in turn["calls"]]
    documents = [document for call in calls for document in call["documents"] or []]
    if not documents:
        raise SmokeError("no search returned a passage, so retrieval was not tested: see server.log")
    return {"trajectories": counts, "statuses": dict(statuses), "passages": len(documents)}


class SmokeArguments(Arguments):
    """Arguments of `recipes/smoke/run.sh`."""

    data: Path | None = argument(
        "folder with rag_r1/ and corpus/ (default: $RAG_R1_DATA, or ../shared/data)", default=None
    )
    backend: Literal[tuple(sorted(INDEX))] = argument("back end of the index", default="bm25")
    out: Path | None = argument(
        "folder for everything that is written (default: outputs/smoke/BACKEND)", default=None
    )
    timeout: float = argument("time limit of the training", "SECONDS", default=1200)
    overrides: Overrides = argument("Hydra overrides of the recipe smoke/hotpotqa", "key=value", default=[])


@command_main(RuntimeError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run all steps, and print what was counted. Returns 0, or 1 after printing why a step failed."""
    args = read_arguments(
        SmokeArguments,
        arguments,
        prog="recipes/smoke/run.sh",
        description="Data processing, index, retrieval server and two GRPO steps on real data, on this CPU.",
    )
    out = (args.out or Path("outputs", "smoke") / args.backend).resolve()
    inputs = Inputs.find((args.data or data_folder()).resolve())
    counts = smoke(inputs, args.backend, out, args.overrides, args.timeout)
    print(f"smoke run with {args.backend}: everything ran. {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
