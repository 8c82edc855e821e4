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

import sys
from collections.abc import Sequence
from pathlib import Path

from examples.agentic_r.loops import DEFAULT_OUT
from examples.agentic_r.markdown import variants_table
from examples.agentic_r.variant_run import finished_variants, run_missing_variants
from examples.common.comparison import write_page
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, argument, read_arguments
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_out

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


@command_main(RunError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 when the table is written, or 1 with the reason."""
    args = read_arguments(
        VariantsArguments, arguments, prog="python -m examples.agentic_r.variants", description=_DESCRIPTION
    )
    with hold_out(args.out):
        for seed in args.seeds:
            run_missing_variants(args.out, seed)
        write_page(args.out / "variants.md", variants_table(finished_variants(args.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
