"""Writes the result page of Agentic-R in miniature: tables, plots and the verdict on the claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.runs.markdown import number, table

#: What the loop must gain in EM over its control.
GAIN = 0.10
_COLORS = {"loop": "#2563eb", "control": "#9aa5b1"}
_LABELS = {"loop": "with the retriever's training", "control": "first index throughout"}


def last_row(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row of a loop's last evaluation."""
    return run["rows"][-1]


def claim_lines(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What held of the claim, a line for each seed of which both loops are there."""
    lines = []
    for seed in sorted({run["seed"] for run in runs}):
        arms = {run["arm"]: last_row(run) for run in runs if run["seed"] == seed}
        if len(arms) < 2:
            continue
        gain = arms["loop"]["em"]["value"] - arms["control"]["em"]["value"]
        more = arms["loop"]["searches"]["value"] - arms["control"]["searches"]["value"]
        verdict = "held" if gain >= GAIN - 1e-9 and more < 0 else "missed"
        lines.append(f"- seed {seed}: EM {gain:+.2f}, {more:+.2f} searches a question: {verdict}")
    return lines


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """The whole page."""
    rows = []
    for run in runs:
        served = "first"
        for row in run["rows"]:
            if row["after"].endswith("retriever"):
                served = row["after"].removesuffix(", retriever")
            recall = run["recall"].get(served, {})
            rows.append(
                [
                    str(run["seed"]),
                    run["arm"],
                    row["after"],
                    number(row["em"]["value"]),
                    number(row["searches"]["value"]),
                    *(number(recall.get(f"recall@{k}")) for k in (1, 3)),
                ]
            )
    lines = [
        "# Agentic-R in miniature",
        "",
        "Held-out questions, greedy. `recall@k`: share of the facts that the questions need whose passage is "
        "among the first k of the index that is served, asked with the name as the agent does first.",
        "",
        *table(["seed", "arm", "after", "EM", "searches", "recall@1", "recall@3"], rows),
    ]
    if found := claim_lines(runs):
        lines += ["", f"EM at least {GAIN:.2f} above the control's, with fewer searches:", "", *found]
    return "\n".join(lines)


def variants_table(found: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> str:
    """The page of variants.py; `found`: seed -> variant -> figures."""
    rows = [
        [
            str(seed),
            name,
            str(one["rows"]),
            *(number(one[figure]) for figure in ("recall@1", "recall@3", "em", "searches")),
        ]
        for seed, variants in found.items()
        for name, one in variants.items()
    ]
    return "\n".join(
        [
            "# Retrievers in one harness",
            "",
            "The same agent, which stays as it is; what is trained has the same trajectories, candidates and "
            "scores.",
            "",
            *table(["seed", "retriever", "rows", "recall@1", "recall@3", "EM", "searches"], rows),
        ]
    )


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """EM and searches of each loop by evaluation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    steps = max(([row["after"] for row in run["rows"]] for run in runs), key=len, default=[])
    titles = {"em": "Held-out exact match", "searches": "Searches a question"}
    for place, (name, title) in zip(axes, titles.items(), strict=True):
        labelled: set[str] = set()
        for run in runs:
            arm = run["arm"]
            points = [(steps.index(row["after"]), row[name]["value"]) for row in run["rows"]]
            label = None if arm in labelled else _LABELS[arm]
            place.plot(*zip(*points, strict=True), "o-", color=_COLORS[arm], alpha=0.8, label=label)
            labelled.add(arm)
        place.set_xticks(range(len(steps)), steps, rotation=30, ha="right")
        place.set(title=title)
        place.set_ylim(bottom=0)
    axes[0].set_ylim(-0.02, 1.02)
    axes[0].legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)
    plt.close(figure)
