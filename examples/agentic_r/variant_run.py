"""Trains the retriever of a variant on a finished loop's data, and evaluates the loop's last agent with it.

The folder of a variant, OUT/seed0/variants/NAME, has its rows, training, index and evaluation, and its
figures once it is finished.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from examples.agentic_r.loop_inputs import LoopInputs, worlds
from examples.agentic_r.loop_settings import NEGATIVES, RETRIEVER_RECIPE, eval_arguments
from examples.agentic_r.loops import last_round
from examples.agentic_r.recall import recall_of
from rag_r1.evaluation.command import run as evaluate
from rag_r1.inference.vllm_server import vllm_server
from rag_r1.io.atomic_files import write_json
from rag_r1.iterate.results import evaluation_metrics
from rag_r1.protocols.retriever_query import Mode
from rag_r1.retriever.selection.arguments import SelectArguments
from rag_r1.retriever.selection.command import main as select_rows
from rag_r1.retriever.training.command import main as train_retriever
from rag_r1.retriever.training.options import TrainOptions, read_recipe
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process


class Variant(NamedTuple):
    """How the retriever of a variant is trained and queried."""

    #: The scores by which its training rows are selected; None if it is not trained.
    utility: str | None
    #: What is sent together with a query.
    query: Mode


#: Name of each variant in the table -> the variant.
VARIANTS = {
    "BM25": Variant(None, "plain"),
    "untrained": Variant(None, "plain"),
    "agentic": Variant("both", "agentic"),
    "plain": Variant("both", "plain"),
    "history": Variant("both", "history"),
    "LR only": Variant("relevance", "agentic"),
    "GAC only": Variant("correctness", "agentic"),
}
_FINISHED = "variant.json"


def run_variant(inputs: LoopInputs, seed: int, name: str, policy: Path, policy_url: str) -> None:
    """Train the retriever of a variant anew, evaluate the agent with it, and write the figures.

    Raises RunError if one of the commands or servers fails.
    """
    folder = _folder(inputs, name)
    print(f"seed {seed}: {name}", flush=True)
    variant = VARIANTS[name]
    index = folder / "index"
    shutil.rmtree(folder, ignore_errors=True)
    if variant.utility is None:
        row_count, encoder = 0, inputs.encoder
    else:
        row_count, encoder = _train(inputs, seed, variant.utility, variant.query, folder)
    dense = ("--backend", "dense", "--encoder", str(encoder), "--device", "cpu")
    options = ("--backend", "bm25") if name == "BM25" else dense
    folder.mkdir(parents=True, exist_ok=True)
    build_index(inputs.folder / "data" / "corpus.jsonl", index, *options)
    data, _, test = worlds(seed)
    figures = recall_of(index, data.val, test, variant.query)
    with retrieval_process(index, folder / "server.log", "--device", "cpu") as url:
        questions = inputs.folder / "data" / "val.parquet"
        args = eval_arguments(policy, policy_url, url, questions, folder / "run", variant.query)
        _check(evaluate(args))
    metrics = evaluation_metrics(folder)
    figures |= {"rows": row_count} | {figure: metrics[figure]["value"] for figure in ("em", "searches")}
    write_json(folder / _FINISHED, figures)


def run_missing_variants(out: Path, seed: int) -> None:
    """Run the variants of a seed that are not finished.

    Raises RunError if the seed's loop is not finished, and as `run_variant` does.
    """
    inputs = LoopInputs.make(out, seed)
    _, policy = last_round(inputs)
    missing = [name for name in VARIANTS if not (_folder(inputs, name) / _FINISHED).exists()]
    if not missing:
        return
    with vllm_server(policy, inputs.folder / "vllm.log") as url:
        for name in missing:
            run_variant(inputs, seed, name, policy, url)


def finished_variants(out: Path) -> dict[int, dict[str, Any]]:
    """Return the figures of all finished variants in the folder, as seed -> variant -> figures."""
    variants: dict[int, dict[str, Any]] = {}
    for path in out.glob(f"seed*/variants/*/{_FINISHED}"):
        seed, name = int(path.parents[2].name.removeprefix("seed")), path.parent.name.replace("_", " ")
        variants.setdefault(seed, {})[name] = json.loads(path.read_text(encoding="utf-8"))
    return {
        seed: {name: by_name[name] for name in VARIANTS if name in by_name}
        for seed, by_name in sorted(variants.items())
    }


def _folder(inputs: LoopInputs, name: str) -> Path:
    """Return the folder of a variant."""
    return inputs.folder / "variants" / name.replace(" ", "_")


def _train(inputs: LoopInputs, seed: int, utility: str, query: Mode, folder: Path) -> tuple[int, Path]:
    """Select rows and train an encoder on them; returns the number of rows and the encoder's folder."""
    scores, _ = last_round(inputs)
    rows, training = folder / "rows.jsonl", folder / "training"
    selection = SelectArguments(
        utility=utility,
        negatives=NEGATIVES,
        seed=seed,
        out=rows,
        candidates=scores / "candidates.jsonl",
        relevance=scores / "relevance.jsonl",
        correctness=scores / "correctness.jsonl",
    )
    _check(select_rows(selection.to_argv()))
    data = {"rows": rows, "corpus": scores / "passages.jsonl", "out": training, "mode": query}
    start = {"model": str(inputs.encoder), "seed": seed}
    options = TrainOptions.from_plain({**read_recipe(str(RETRIEVER_RECIPE)), **start, **data})
    _check(train_retriever(options.to_argv()))
    return rows.read_bytes().count(b"\n"), training / "model"


def _check(status: int) -> None:
    """Raise RunError if the exit status of a command is not 0."""
    if status:
        raise RunError(f"a command of the variant ended with status {status} (see above): run variants again")
