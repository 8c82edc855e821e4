"""Writes the result page of the memory experiment: tables, curves and the verdict on the claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.runs.markdown import table

#: What a trained memory must gain in EM: over the trained plain policy, and over its own start.
GAIN = 0.20
_COLUMNS = {
    "EM one_hop": "EM one-hop",
    "EM bridge": "EM bridge",
    "EM both": "EM both",
    "EM all": "EM all",
    "summary": "with a summary",
    "backtrack": "with a backtrack",
    "token limit": "no room",
    "rows": "rows",
}
_COLORS = {"memory": "#2563eb", "plain": "#9aa5b1", "ppo": "#ea580c"}
_LABELS = {"memory": "memory, GRPO", "plain": "plain, GRPO", "ppo": "memory, PPO"}


def first_and_last(run: Mapping[str, Any]) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The figures of a training's first and last validation."""
    steps = sorted(run["held_out"], key=int)
    return run["held_out"][steps[0]], run["held_out"][steps[-1]]


def claim_lines(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What held of the claim, a line for each seed in which memory and plain were both trained."""
    lines = []
    for seed in sorted({run["seed"] for run in runs}):
        arms = {run["arm"]: first_and_last(run) for run in runs if run["seed"] == seed}
        if not {"memory", "plain"} <= set(arms):
            continue
        (start, end), plain = arms["memory"], arms["plain"][1]
        over_plain, over_start = end["EM all"] - plain["EM all"], end["EM all"] - start["EM all"]
        verdict = "held" if min(over_plain, over_start) >= GAIN - 1e-9 else "missed"
        lines.append(
            f"- seed {seed}: {over_plain:+.2f} over plain, {over_start:+.2f} over its own start: {verdict}"
        )
    return lines


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """The whole page."""
    rows = []
    for run in runs:
        before, after = first_and_last(run)
        steps = max(map(int, run["held_out"]))
        cells = [f"{before[name]:.2f} → {after[name]:.2f}" for name in _COLUMNS]
        rows.append([_LABELS[run["arm"]], str(run["seed"]), *cells, str(steps), f"{run['seconds'] / 60:.1f}"])
    lines = [
        "# The memory in miniature",
        "",
        "Held-out questions, greedy, before and after training. `with a summary` and `with a backtrack`: "
        "shares of the episodes; `no room`: share that ended because the context was full; `rows`: training "
        "rows of a trajectory.",
        "",
        *table(["", "seed", *_COLUMNS.values(), "steps", "minutes"], rows),
    ]
    if found := claim_lines(runs):
        lines += ["", f"A memory gains at least {GAIN:.2f} EM:", "", *found]
    return "\n".join(lines)


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Held-out EM, and the shares of episodes with a summary and a backtrack, by step; a line a training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    titles = {
        "EM all": "Held-out exact match",
        "summary": "Episodes with a summary",
        "backtrack": "Episodes with a backtrack",
    }
    for place, (name, title) in zip(axes, titles.items(), strict=True):
        labelled: set[str] = set()
        for run in runs:
            arm = run["arm"]
            points = sorted((int(step), found[name]) for step, found in run["held_out"].items())
            label = None if arm in labelled else _LABELS[arm]
            place.plot(*zip(*points, strict=True), "o-", color=_COLORS[arm], alpha=0.8, label=label)
            labelled.add(arm)
        place.xaxis.get_major_locator().set_params(integer=True)
        place.set(xlabel="step", ylim=(-0.02, 1.02), title=title)
    axes[0].legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=150)
    plt.close(figure)
