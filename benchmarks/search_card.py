"""Makes the search cards of demo policies, which show whether they search or already know the answers.

    python benchmarks/search_card.py --seeds 0 1 2

For each seed the benchmark trains a policy of the demo (`python -m rag_r1.demo.run`) and makes its search
card (`rag-r1 eval --card`) on the held-out questions of that seed's world. Then it prints a table and draws a
picture of all seeds into the folder of the runs. `--policy DIR` uses a finished policy instead of training.
Finished parts are not repeated, so an interrupted benchmark resumes where it stopped.

It checks three expectations: with a closed book at most .05 of the one-hop, bridge and both questions are
right (half of the comparison questions can be guessed); with the evidence withheld at most half as many are
right as in the real run; and with the gold passages at least as many.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from rag_r1.demo.eval_arguments import demo_eval_arguments
from rag_r1.demo.run import KEEP_POLICY, protocol_of, run_demo
from rag_r1.demo.world import KINDS, demo_protocol, write_demo
from rag_r1.evaluation import command
from rag_r1.evaluation.probes.verdict import CONDITION_NAMES
from rag_r1.options.command_exit import command_main
from rag_r1.probes.probes import PROBES
from rag_r1.runs import markdown, pictures
from rag_r1.runs.errors import RunError
from rag_r1.tools.retrieval.local_server import build_index, retrieval_process
from rag_r1.training.next_steps import newest_checkpoint

ROOT = Path(__file__).resolve().parents[1]

#: The kinds of questions whose answers cannot be guessed.
NOT_GUESSED = ("one_hop", "bridge", "both")
#: Most EM with a closed book, and most EM with the evidence withheld as a share of that of the real run.
CLOSED_BOOK_AT_MOST, WITHHELD_AT_MOST = 0.05, 0.5


def policy_of(args: argparse.Namespace, seed: int, folder: Path) -> Path:
    """Return the policy of a seed: the one of --policy, or one that is trained unless it exists."""
    if args.policy:
        return args.policy
    out = folder / "training"
    if not (out / "results.json").exists() or newest_checkpoint(out / "checkpoints") is None:
        run_demo(args.recipe, out, seed, [*KEEP_POLICY, *args.set], args.timeout)
    checkpoint = newest_checkpoint(out / "checkpoints")
    assert checkpoint is not None, f"{out} has no checkpoint"
    return checkpoint


def card_of(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Return the search card of a seed, from its folder if it is finished.

    Raises RunError if the training fails, and SystemExit if the evaluation does.
    """
    folder = args.out / f"seed{seed}"
    card = folder / "card" / "search_card.json"
    if not card.exists():
        model, protocol = policy_of(args, seed, folder), protocol_of(args.recipe)
        write_demo(folder / "data", demo_protocol(protocol), seed, train=1, val=args.questions)
        corpus = folder / "data" / "corpus.jsonl"
        if not (folder / "index" / "manifest.json").exists():
            build_index(corpus, folder / "index", "--backend", "bm25")
        with retrieval_process(folder / "index", folder / "server.log") as url:
            questions, out = folder / "data" / "val.parquet", folder / "card"
            evaluation = demo_eval_arguments(model, questions, protocol, url, out)
            if command.run(evaluation.changed(card=True, corpus=[corpus], in_flight=16)):
                sys.exit(f"error: the card of seed {seed} is not finished; see above, and start again")
    return json.loads(card.read_text(encoding="utf-8"))


def em(card: Mapping[str, Any], condition: str, kind: str | None = None) -> float:
    """Return the EM of a condition, over all questions or those of one kind."""
    figures = card["conditions"][condition]
    return (figures["em"] if kind is None else figures["groups"][f"demo/{kind}"])["value"]


def checks(card: Mapping[str, Any]) -> dict[str, bool]:
    """Return for each expectation of a card, in words, whether it holds."""
    closed_book = max(em(card, "closed_book", kind) for kind in NOT_GUESSED)
    return {
        "closed book <= .05 on one-hop, bridge and both": closed_book <= CLOSED_BOOK_AT_MOST,
        "withheld <= half of the real run": em(card, "withheld") <= WITHHELD_AT_MOST * em(card, "real"),
        "gold >= the real run": em(card, "gold") >= em(card, "real"),
    }


def table(cards: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the table of EM by condition: of each seed, and of each kind as the mean over the seeds."""
    seeds = [f"seed {seed}" for seed in cards]
    rows = []
    for name in PROBES:
        values = [em(card, name) for card in cards.values()]
        values += [fmean(em(card, name, kind) for card in cards.values()) for kind in KINDS]
        rows.append([CONDITION_NAMES[name], *(f"{value:.2f}" for value in values)])
    return "\n".join(markdown.table(["", *seeds, *KINDS], rows))


def draw(cards: Mapping[int, Mapping[str, Any]], path: Path) -> list[Path]:
    """Draw EM by condition and kind of question, as means over the seeds with a dot for each seed.

    Returns the paths of the pictures.
    """

    def paint(axes: Any) -> None:
        """Draw a bar for each condition and kind of question."""
        for index, kind in enumerate(KINDS):
            positions = [i + 0.2 * (index - 1.5) for i in range(len(PROBES))]
            values = [[em(card, name, kind) for card in cards.values()] for name in PROBES]
            label = kind.replace("_", "-")
            axes.bar(positions, list(map(fmean, values)), 0.18, color=pictures.SERIES[index], label=label)
            for position, ems in zip(positions, values, strict=True):
                axes.plot([position] * len(ems), ems, "o", color="#111827", markersize=2.5)
        axes.set_xticks(range(len(PROBES)), [fill(CONDITION_NAMES[name], 12) for name in PROBES], fontsize=8)
        axes.set(ylim=(0, 1.05), ylabel="held-out EM")
        axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.15))

    return pictures.draw(path, paint, size=(8, 3.4))


@command_main(RunError)
def main(argv: Sequence[str] | None = None) -> int:
    """Make the missing cards, and print the table and the expectations; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of the worlds and of their questions")
    add("--recipe", default="grpo", help="demo recipe of the trainings")
    add("--policy", type=Path, metavar="DIR", help="a finished policy for all seeds, instead of training")
    add("--questions", type=int, default=160, metavar="N", help="held-out questions of each seed")
    add("--out", type=Path, default=ROOT / "outputs" / "search_card", help="output folder of the runs")
    add("--timeout", type=float, default=3600, metavar="SECONDS", help="time limit of each training")
    add("--set", nargs="*", default=[], metavar="key=value", help="Hydra overrides of every training")
    args = parser.parse_args(argv)
    args.out = args.out.resolve()
    cards = {seed: card_of(args, seed) for seed in args.seeds}
    draw(cards, args.out / "search_card.png")
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, {date.today()}\n\n{table(cards)}\n")
    for seed, card in cards.items():
        missed = [name for name, held in checks(card).items() if not held]
        outcome = f"missed: {'; '.join(missed)}" if missed else "all held"
        print(f"seed {seed}: {card['verdict']}; {outcome}")
    print(f"picture: {args.out / 'search_card.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
