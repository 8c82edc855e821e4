"""Compares single-query with multi-query search in the demo world: RAG-R1's claim in miniature.

    python -m examples.sq_mq.run --seeds 0 1 2

For each seed the command trains a single-query policy (the recipe demo/ppo_sq) and a multi-query one
(demo/ppo_mq) in the world of that seed. Then it evaluates both with `rag-r1 eval` on the seed's held-out
questions: with greedy decoding, one question at a time, and a search that takes 0.3 s (a proxy delays the
real retrieval server). It compares EM, search rounds (turns with a search, RAG-R1's "retrievals") and seconds
of a question, for each kind of question and for those with two independent facts, which one round can look up
together.

    OUT/seed0/sq, OUT/seed0/mq            the trainings (rag_r1/demo/run.py)
    OUT/seed0/eval_sq, OUT/seed0/eval_mq  the evaluations, with report and card
    OUT/sq_mq.md, OUT/sq_mq.json          the tables, and which parts of the claim hold

Finished trainings and evaluations are not repeated, and an interrupted evaluation resumes. A comparison that
was begun with other settings is refused, since its trainings may have been made with those. `--policies SQ
MQ` evaluates policies that were trained before, and `--untrained` the embedded warm starts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import model_validator

from examples.common.comparison import Seeds, write_page
from examples.sq_mq.markdown import ARMS, TWO_FACTS, markdown
from rag_r1.demo.eval_arguments import NO_CACHE, demo_eval_arguments
from rag_r1.demo.loopback import DelayingProxy
from rag_r1.demo.policy import policy_path
from rag_r1.demo.run import KEEP_POLICY, OUTPUTS, run_demo
from rag_r1.demo.world import INDEPENDENT, KINDS, demo_protocol, write_demo
from rag_r1.evaluation import command
from rag_r1.evaluation.report.run_table import read_run
from rag_r1.inference.model_folders import newest_checkpoint
from rag_r1.io.atomic_files import write_json
from rag_r1.options.arguments.overrides import CheckedOverrides
from rag_r1.options.command_exit import command_main
from rag_r1.options.command_line import Arguments, From0, Positive, argument, read_arguments
from rag_r1.runs.errors import RunError
from rag_r1.runs.state_file import StateFile
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process

#: The group of all questions. TWO_FACTS is that of the kinds in INDEPENDENT.
ALL = "all"
#: Column of a run's table -> name of the figure, its mean over the questions.
_MEASURES = {"em:squad": "em", "retrievals": "rounds", "seconds": "seconds"}


class SqMqArguments(Arguments):
    """The seeds and policies to compare, and the settings of their evaluation."""

    seeds: Seeds = argument("seeds of the worlds and their questions", ("SEED", ...), default=[0])
    out: Path = argument("folder of the comparison", "DIR", default=OUTPUTS / "sq_mq")
    policies: list[Path] = argument(
        "the two policies to evaluate instead of training: Hugging Face folders, or checkpoints of veRL",
        ("SQ", "MQ"),
        default=[],
    )
    untrained: bool = argument("evaluate the embedded warm starts instead of training", default=False)
    questions: Positive = argument("number of held-out questions of each seed", "N", default=160)
    search_s: From0 = argument("seconds that a search takes", "S", default=0.3)
    timeout: From0 = argument("time limit of a training", "SECONDS", default=3600.0)
    overrides: CheckedOverrides = argument("Hydra overrides of the trainings", "key=value", default=[])

    @model_validator(mode="after")
    def _one_source_of_policies(self) -> SqMqArguments:
        if self.policies and self.untrained:
            raise ValueError("--policies and --untrained: give one of them")
        return self


@command_main(RunError, ValueError)  # a world with too few questions raises ValueError
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 when the comparison is written, or 1 with the reason."""
    args = read_arguments(
        SqMqArguments,
        arguments,
        prog="python -m examples.sq_mq.run",
        description="Several queries in a turn against one: RAG-R1's claim in miniature, on this machine.",
        epilog="key=value arguments change both trainings, for example trainer.total_training_steps=6",
    )
    runs = [compare_seed(args, seed) for seed in args.seeds]
    comparison = {"settings": settings_of(args), "runs": runs}
    write_json(args.out / "sq_mq.json", comparison)
    write_page(args.out / "sq_mq.md", markdown(comparison))
    return 0


def settings_of(args: SqMqArguments) -> dict[str, Any]:
    """Return the settings on which the figures depend, besides the seed."""
    policies = "untrained" if args.untrained else [str(path) for path in args.policies] or "trained"
    return {"policies": policies, **args.model_dump(include={"questions", "search_s", "overrides"})}


def compare_seed(args: SqMqArguments, seed: int) -> dict[str, Any]:
    """Train and evaluate both policies of a seed, or read the results of an earlier run.

    Returns `{"seed", "sq": {group: figures}, "mq": ...}`. Raises RunError if a training or an evaluation
    fails, or if the seed's folder was begun with other settings, and ValueError, before a training, if the
    world has fewer questions than `args` asks for.
    """
    folder = args.out / f"seed{seed}"
    finished = StateFile(folder / "results.json", {"settings": settings_of(args)}, refuses_changes=True)
    if (earlier := finished.read(lambda content: content["results"])) is not None:
        return earlier
    # Both arms read one file of questions; the evaluation applies the prompt of the arm's protocol.
    write_demo(folder / "data", demo_protocol("rag_r1_mq"), seed, train=1, val=args.questions)
    finished.write({"results": None})  # a resumed comparison with other settings is refused
    models = {arm: trained_policy(args, arm, seed, folder) for arm in ARMS}
    if not (folder / "index" / "manifest.json").exists():
        build_index(folder / "data" / "corpus.jsonl", folder / "index", "--backend", "bm25")
    results: dict[str, Any] = {"seed": seed}
    with (
        retrieval_process(folder / "index", folder / "server.log") as server,
        DelayingProxy(server, args.search_s) as proxy,
    ):
        for arm, model in models.items():
            print(f"seed {seed}, {arm}: {args.questions} questions, one at a time")
            out, data = folder / f"eval_{arm}", folder / "data" / "val.parquet"
            evaluation = demo_eval_arguments(model, data, f"rag_r1_{arm}", proxy.url, out, NO_CACHE)
            if command.run(evaluation.changed(in_flight=1)):
                raise RunError(f"the evaluation in {out} did not end (see above): run the command again")
            results[arm] = read_figures(out)
    finished.write({"results": results})
    return results


def trained_policy(args: SqMqArguments, arm: str, seed: int, folder: Path) -> Path:
    """Return the policy of an arm, after training it if it is neither given nor trained already.

    Raises RunError if the training fails or leaves no checkpoint.
    """
    if args.untrained:
        return policy_path(f"rag_r1_{arm}")
    if args.policies:
        return args.policies[ARMS.index(arm)]
    out = folder / arm
    if not (out / "results.json").exists() or newest_checkpoint(out / "checkpoints") is None:
        print(f"seed {seed}: training {arm}")
        run_demo(f"ppo_{arm}", out.resolve(), seed, [*KEEP_POLICY, *args.overrides], args.timeout)
    trained = newest_checkpoint(out / "checkpoints")
    if trained is None:
        raise RunError(f"{out} has no checkpoint: leave trainer.save_freq as it is")
    return trained


def read_figures(run: Path) -> dict[str, dict[str, float]]:
    """Return the number of questions and their mean EM, rounds and seconds in a finished evaluation.

    The groups are the kinds of questions, those with two independent facts, and all. Raises RunError if an
    episode has failed, since its seconds would be those of the failure.
    """
    table = read_run(run)
    if table.failed.any():
        raise RunError(f"{run}: {int(table.failed.sum())} episodes failed: run the command again for them")
    kinds = np.array([source.rpartition("/")[2] for source, _, _ in table.keys])
    groups = {kind: kinds == kind for kind in KINDS}
    groups |= {TWO_FACTS: np.isin(kinds, INDEPENDENT), ALL: np.ones(len(kinds), dtype=bool)}
    return {
        group: {
            "questions": int(members.sum()),
            **{name: float(table.columns[column][members].mean()) for column, name in _MEASURES.items()},
        }
        for group, members in groups.items()
        if members.any()
    }


if __name__ == "__main__":
    sys.exit(main())
