"""Compares retriever variants of the miniature: baselines and ablations of Agentic-R's retriever.

    python -m examples.agentic_r.variants --seeds 0 1 2

The command needs finished loops of `python -m examples.agentic_r.run`. It uses the data of their last round
(trajectories, candidates and both scores) and their last agent, which is not trained further. For each
variant it selects training rows by the scores, trains an encoder, builds an index, and lets the agent answer
the held-out questions:

    BM25         no encoder
    untrained    the encoder from which all others are trained; the query alone is sent
    agentic      rows selected by GAC and LR; the question is sent with the query
    plain        the same rows; the query alone is sent
    history      the same rows; the earlier queries are sent, too
    LR only      rows selected by relevance
    GAC only     rows selected by the correctness of the final answer

    OUT/seed0/variants/NAME     rows, training, index, evaluation
    OUT/variants.md             the table of all seeds in the folder

A finished variant is not repeated; an interrupted one starts again.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from examples.agentic_r.loop_inputs import NEGATIVES, LoopInputs, encoder_options, eval_arguments, worlds
from examples.agentic_r.markdown import variants_table
from examples.agentic_r.recall import recall_of
from examples.agentic_r.run import DEFAULT_OUT, FINISHED
from examples.common.comparison import write_page
from rag_r1.evaluation.command import run as evaluate
from rag_r1.inference.vllm_server import vllm_server
from rag_r1.io.atomic_files import write_json
from rag_r1.iterate.results import evaluation_metrics
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.protocols.retriever_query import Mode
from rag_r1.retriever.selection.arguments import SelectArguments
from rag_r1.retriever.selection.command import main as select_rows
from rag_r1.retriever.training.command import main as train_retriever
from rag_r1.retriever.training.options import TrainOptions
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_out
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process


class Variant(NamedTuple):
    """How the retriever of a variant is trained and queried."""

    #: The scores by which its training rows are selected; None if it is not trained.
    utility: str | None
    #: What is sent together with a query.
    query: Mode


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
_DESCRIPTION = """\
Compare retrievers with the last agent of finished loops (python -m examples.agentic_r.run) on their
held-out questions: BM25; the untrained encoder; and encoders trained on the data of the loop's last round:

  agentic    rows selected by correctness of the answer (GAC) and relevance (LR); question beside query
  plain      the same rows, the query alone
  history    the same rows, with the queries before
  LR only    rows selected by relevance
  GAC only   rows selected by correctness

This takes about eight minutes a seed on two cores. Finished variants are not repeated.
"""


class VariantsArguments(Arguments):
    """The loops whose retrievers are compared."""

    seeds: list[int] = argument("seeds of finished loops", ("SEED", ...), default=[0])
    out: Path = argument("folder of the loops", "DIR", default=DEFAULT_OUT)


def run_variant(inputs: LoopInputs, seed: int, name: str, policy: Path, policy_url: str) -> dict[str, Any]:
    """Train the retriever of a variant, let the agent use it, and return the figures; a finished one is read.

    Raises RunError if one of the commands fails.
    """
    folder = _folder(inputs, name)
    if (folder / _FINISHED).exists():
        return json.loads((folder / _FINISHED).read_text(encoding="utf-8"))
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
    return figures


def _run_missing_variants(out: Path, seed: int) -> None:
    """Run the variants of a seed that are not finished.

    Raises RunError if the seed's loop is not finished.
    """
    inputs = LoopInputs.make(out, seed)
    _last_data(inputs)  # raises RunError, before the policy is served
    if all((_folder(inputs, name) / _FINISHED).exists() for name in VARIANTS):
        return
    policy = _last_agent(inputs)
    with vllm_server(policy, inputs.folder / "vllm.log") as url:
        for name in VARIANTS:
            run_variant(inputs, seed, name, policy, url)


def finished_variants(out: Path) -> dict[int, dict[str, Any]]:
    """Return the figures of all finished variants in the folder, as seed -> variant -> figures."""
    variants: dict[int, dict[str, Any]] = {}
    for path in out.glob(f"seed*/variants/*/{_FINISHED}"):
        seed, name = int(path.parents[2].name.removeprefix("seed")), path.parent.name.replace("_", " ")
        variants.setdefault(seed, {})[name] = json.loads(path.read_text(encoding="utf-8"))
    return {
        seed: {name: row[name] for name in VARIANTS if name in row} for seed, row in sorted(variants.items())
    }


def _folder(inputs: LoopInputs, name: str) -> Path:
    """Return the folder of a variant."""
    return inputs.folder / "variants" / name.replace(" ", "_")


def _train(inputs: LoopInputs, seed: int, utility: str, query: Mode, folder: Path) -> tuple[int, Path]:
    """Select rows and train an encoder on them; returns the number of rows and the encoder's folder."""
    scores, rows, training = _last_data(inputs), folder / "rows.jsonl", folder / "training"
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
    options = TrainOptions.from_plain({**encoder_options(inputs, seed), **data})
    _check(train_retriever(options.to_argv()))
    return len(rows.read_text(encoding="utf-8").splitlines()), training / "model"


def _last_data(inputs: LoopInputs) -> Path:
    """Return the folder with the data of the loop's last round.

    Raises RunError if the loop is not finished.
    """
    loop = inputs.folder / "loop"
    if not (loop / FINISHED).exists():
        raise RunError(f"{loop} is not finished: run python -m examples.agentic_r.run first")
    return loop / f"round{_rounds(inputs)}" / "data" / "run"


def _last_agent(inputs: LoopInputs) -> Path:
    """Return the model of the training that follows the loop's last round."""
    return (inputs.folder / "loop" / f"round{_rounds(inputs) + 1}" / "agent" / "model").resolve()


def _rounds(inputs: LoopInputs) -> int:
    """Return the number of the loop's rounds, without the last training of the agent."""
    return json.loads((inputs.folder / "loop" / FINISHED).read_text(encoding="utf-8"))["rounds"]


def _check(status: int) -> None:
    """Raise RunError if the exit status of a command is not 0."""
    if status:
        raise RunError(f"a command ended with status {status} (see above): run this one again")


@command_main(RunError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 when the table is written, or 1 with the reason."""
    args = read_arguments(
        VariantsArguments, arguments, prog="python -m examples.agentic_r.variants", description=_DESCRIPTION
    )
    with hold_out(args.out):
        for seed in args.seeds:
            _run_missing_variants(args.out, seed)
    write_page(args.out / "variants.md", variants_table(finished_variants(args.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
