"""Writes the result page of the memory experiment: tables, curves and the verdict on the claim.

`run.py` passes the finished trainings, as recorded in their `memory.json`. The claim is that a trained memory
raises EM by `GAIN` over the plain policy and over its own start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.runs import pictures
from rag_r1.runs.markdown import Claim, Page

#: The claim holds if a trained memory exceeds the EM of the trained plain policy, and of its own start, by
#: this.
GAIN = 0.20
#: Figure of a validation (`figures` in run.py) -> its column in the table.
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
_COLORS = {"memory": pictures.BLUE, "plain": pictures.GREY, "ppo": pictures.ORANGE}
_LABELS = {"memory": "memory, GRPO", "plain": "plain, GRPO", "ppo": "memory, PPO"}


def first_and_last(run: Mapping[str, Any]) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the figures of a training's first and last validation."""
    steps = sorted(run["held_out"], key=int)
    return run["held_out"][steps[0]], run["held_out"][steps[-1]]


def claims_of(runs: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return the claim for each seed for which memory and plain were trained, and whether it holds."""
    claims = []
    for seed in sorted({run["seed"] for run in runs}):
        arms = {run["arm"]: first_and_last(run) for run in runs if run["seed"] == seed}
        if not {"memory", "plain"} <= set(arms):
            continue
        (start, end), plain = arms["memory"], arms["plain"][1]
        over_plain, over_start = end["EM all"] - plain["EM all"], end["EM all"] - start["EM all"]
        text = f"seed {seed}: {over_plain:+.2f} over plain, {over_start:+.2f} over its own start"
        claims.append(Claim(text, min(over_plain, over_start) >= GAIN - 1e-9))  # tolerates rounding
    return claims


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page in Markdown, with a table of all trainings and the claims."""
    rows = []
    for run in runs:
        before, after = first_and_last(run)
        steps = max(map(int, run["held_out"]))
        cells = [f"{before[name]:.2f} → {after[name]:.2f}" for name in _COLUMNS]
        rows.append([_LABELS[run["arm"]], run["seed"], *cells, steps, f"{run['seconds'] / 60:.1f}"])
    page = Page("The memory in miniature").text(
        "Held-out questions, greedy, before and after training. `with a summary` and `with a backtrack`: "
        "shares of the episodes; `no room`: share that ended because the context was full; `rows`: training "
        "rows of a trajectory."
    )
    page.table(["", "seed", *_COLUMNS.values(), "steps", "minutes"], rows)
    if claims := claims_of(runs):
        page.text(f"A memory gains at least {GAIN:.2f} EM:").bullets(claims)
    return str(page)


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> list[Path]:
    """Draw held-out EM and the shares of episodes with a summary and with a backtrack, by step.

    Each training is a line. Returns the paths of the pictures.
    """
    titles = {
        "EM all": "Held-out exact match",
        "summary": "Episodes with a summary",
        "backtrack": "Episodes with a backtrack",
    }

    def paint(*panels: pictures.Axes) -> None:
        """Draw a figure in each panel, with a line for each training."""
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            for run in runs:
                points = sorted((int(step), figures[name]) for step, figures in run["held_out"].items())
                pictures.line(axes, points, _LABELS[run["arm"]], _COLORS[run["arm"]])
            pictures.whole_steps(axes)
            axes.set(xlabel="training step", ylim=(-0.02, 1.02), title=title, ylabel="share of episodes")
        panels[0].set_ylabel("exact match")
        panels[0].legend(frameon=False, loc="upper left")

    return pictures.draw(path, paint, size=(9.6, 3.4), panels=3)
