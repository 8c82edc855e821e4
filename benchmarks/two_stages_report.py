"""Writes the page of benchmarks/two_stages.py: its text, its table, and its picture.

Each run has the results of one seed (`two_stages.run`): the figures of both arms by step, greedy on the
held-out questions and sampled in training, and the sampled F1 of the finished models.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_r1.evaluation.report.estimates import known_mean
from rag_r1.runs import markdown, pictures

PAGE = """\
# R1-Searcher's two stages in miniature

    {command}

{machine}. A policy of one million parameters whose supervised data never showed a search
(`rag_r1/demo/r1_searcher_traces.py`) is trained in the demo's invented world, through real veRL, Ray, FSDP
and vLLM. Stage 1 rewards searching and the format; stage 2 rewards the answer's F1, with -2 for a wrong
format.
The control has stage 2's reward from the start, for as many steps as both stages together. Each step has 128
trajectories; held-out are 160 questions about names that do not occur in training.
`searched` is the share of trajectories with a well-formed search: every query opened, closed and answered,
no documents made up. `sampled` is in training at temperature 1 (at the start: before any update), `greedy`
on the held-out questions. `name` is the share of trajectories whose first query is one or all of the
question's names rather than just some of its words, averaged over the six training steps before. Held-out F1
is measured twice: greedily during the training itself, and from the finished models at temperature 1, four
trajectories per question, in plain torch.

{table}

![Share of trajectories with a well-formed search, and held-out F1, by step](two_stages.png)
"""
#: The control's name in the table.
CONTROL = "control, stage 2 alone"
#: The figures of every validation and of every training step.
FIGURES = ("searched", "F1", "EM", "cover-EM")


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return the table of figures in training (sampled) and on held-out questions (greedy).

    Each seed has four rows: the start, the two stages, and the control.
    """
    header = ["seed", "", "step", "searched, sampled", "name, sampled", "F1, sampled"]
    header += ["searched, greedy", "F1, greedy", "EM", "cover-EM"]
    rows = []
    for results in runs:
        held_out, training = results["held_out"], results["training"]
        first = results["stage1_steps"]
        last = max(map(int, held_out["two stages"]))
        points = [
            ("start", "two stages", 0),
            ("stage 1", "two stages", first),
            ("stage 2", "two stages", last),
        ]
        for name, arm, step in [*points, (CONTROL, "control", max(map(int, held_out["control"])))]:
            # The six steps up to this one.
            window = [training[arm][str(n)] for n in range(max(step - 5, 1), max(step, 1) + 1)]
            figures = [window[-1]["searched"], known_mean([point["name"] for point in window])]
            figures.append(results["sampled"][name])
            figures += [held_out[arm][str(step)][figure] for figure in FIGURES]
            cells = [results["seed"], name, step, *(f"{value:.2f}" for value in figures)]
            rows.append(cells)
    return "\n".join(markdown.table(header, rows, "ll" + "r" * (len(header) - 2)))


def draw(runs: Sequence[dict[str, Any]], path: Path) -> list[Path]:
    """Draw the share with a search (sampled) and the held-out F1 (greedy) by step, with a line for each seed.

    Returns the paths of the pictures.
    """
    arms = {
        "two stages": ("stage 1, then stage 2", pictures.BLUE),
        "control": ("stage 2 alone", pictures.ORANGE),
    }

    def paint(left: Any, right: Any) -> None:
        """Draw the training in the left panel, and the held-out F1 in the right one."""
        for results in runs:
            for axes, kind, name in ((left, "training", "searched"), (right, "held_out", "F1")):
                for arm, (label, color) in arms.items():
                    points = sorted((int(step), values[name]) for step, values in results[kind][arm].items())
                    pictures.line(axes, points, label, color, "-")
                axes.axvline(results["stage1_steps"], color=pictures.GREY, linestyle=":", linewidth=1)
        left.set(
            xlabel="step", ylabel="share", ylim=(-0.02, 1.02), title="With a well-formed search (sampled)"
        )
        right.set(xlabel="step", ylabel="F1", ylim=(0, 1.02), title="Held-out questions (greedy)")
        left.legend(frameon=False, loc="center right")

    return pictures.draw(path, paint, size=(10, 3.6), panels=2)
