"""Writes the result pages of Agentic-R in miniature: tables, plots and the verdict on the claim.

`run.py` passes the finished loops, as recorded in their `arm.json`; `variants.py` passes the figures of its
variants. The claim is that training the retriever raises EM by `GAIN` over the control, with fewer searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.agentic_r.recall import KS
from rag_r1.runs import pictures
from rag_r1.runs.markdown import Claim, Page, number

#: The claim holds if the loop's EM exceeds that of its control by at least this much.
GAIN = 0.10
_RECALLS = [f"recall@{k}" for k in KS]
_COLORS = {"loop": pictures.BLUE, "control": pictures.GREY}
_LABELS = {"loop": "with the retriever's training", "control": "first index throughout"}


def last_row(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row of the last evaluation in a loop's table."""
    return run["rows"][-1]


def claims_of(runs: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return the claim for each seed with both loops finished, and whether it holds."""
    claims = []
    for seed in sorted({run["seed"] for run in runs}):
        arms = {run["arm"]: last_row(run) for run in runs if run["seed"] == seed}
        if len(arms) < 2:
            continue
        gain = arms["loop"]["em"]["value"] - arms["control"]["em"]["value"]
        search_change = arms["loop"]["searches"]["value"] - arms["control"]["searches"]["value"]
        holds = gain >= GAIN - 1e-9 and search_change < 0  # tolerates rounding
        claims.append(Claim(f"seed {seed}: EM {gain:+.2f}, {search_change:+.2f} searches a question", holds))
    return claims


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page in Markdown, with a table of all evaluations and the claims."""
    rows = []
    for run in runs:
        served = "first"
        for row in run["rows"]:
            if row["after"].endswith("retriever"):
                served = row["after"].removesuffix(", retriever")
            recall = run["recall"].get(served, {})
            means = [number(row[figure]["value"]) for figure in ("em", "searches")]
            recalls = [number(recall.get(name)) for name in _RECALLS]
            rows.append([run["seed"], run["arm"], row["after"], *means, *recalls])
    page = Page("Agentic-R in miniature").text(
        "Held-out questions, greedy. `recall@k`: share of the facts that the questions need whose passage is "
        "among the first k of the index that is served, asked with the name as the agent does first."
    )
    page.table(["seed", "arm", "after", "EM", "searches", *_RECALLS], rows)
    if claims := claims_of(runs):
        page.text(f"EM at least {GAIN:.2f} above the control's, with fewer searches:").bullets(claims)
    return str(page)


def variants_table(variants_by_seed: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the page of variants.py in Markdown; `variants_by_seed` is seed -> variant -> figures."""
    columns = (*_RECALLS, "em", "searches")
    rows = [
        [seed, name, figures["rows"], *(number(figures[column]) for column in columns)]
        for seed, variants in variants_by_seed.items()
        for name, figures in variants.items()
    ]
    page = Page("Retrievers in one harness").text(
        "The same agent, which stays as it is; what is trained has the same trajectories, candidates and "
        "scores."
    )
    return str(page.table(["seed", "retriever", "rows", *_RECALLS, "EM", "searches"], rows))


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> list[Path]:
    """Draw EM and searches of each loop by evaluation, and return the paths of the pictures."""
    steps = max(([row["after"] for row in run["rows"]] for run in runs), key=len, default=[])
    titles = {"em": "Held-out exact match", "searches": "Searches a question"}

    def paint(*panels: pictures.Axes) -> None:
        """Draw a figure in each panel, with a line for each loop."""
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            for run in runs:
                points = [(steps.index(row["after"]), row[name]["value"]) for row in run["rows"]]
                pictures.line(axes, points, _LABELS[run["arm"]], _COLORS[run["arm"]])
            axes.set_xticks(range(len(steps)), steps, rotation=30, ha="right")
            axes.set_title(title)
        panels[0].set(ylabel="exact match", ylim=(-0.02, 1.02))
        panels[1].set(ylabel="searches for each question", ylim=(0, None))
        panels[0].legend(frameon=False, loc="upper left")

    return pictures.draw(path, paint, size=(10, 3.8), panels=2)
