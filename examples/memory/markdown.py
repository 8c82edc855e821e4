"""Writes the result page of the memory experiment: tables, curves and the verdict on the claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.runs import pictures
from rag_r1.runs.markdown import Claim, Page

#: The least gain in EM of a trained memory, over the trained plain policy and over its own start.
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
_COLORS = {"memory": pictures.BLUE, "plain": pictures.GREY, "ppo": pictures.ORANGE}
_LABELS = {"memory": "memory, GRPO", "plain": "plain, GRPO", "ppo": "memory, PPO"}


def first_and_last(run: Mapping[str, Any]) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The figures of a training's first and last validation."""
    steps = sorted(run["held_out"], key=int)
    return run["held_out"][steps[0]], run["held_out"][steps[-1]]


def claims_of(runs: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """The claim for each seed in which memory and plain were both trained, and whether it holds."""
    claims = []
    for seed in sorted({run["seed"] for run in runs}):
        arms = {run["arm"]: first_and_last(run) for run in runs if run["seed"] == seed}
        if not {"memory", "plain"} <= set(arms):
            continue
        (start, end), plain = arms["memory"], arms["plain"][1]
        over_plain, over_start = end["EM all"] - plain["EM all"], end["EM all"] - start["EM all"]
        text = f"seed {seed}: {over_plain:+.2f} over plain, {over_start:+.2f} over its own start"
        claims.append(Claim(text, min(over_plain, over_start) >= GAIN - 1e-9))
    return claims


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """The page in Markdown: a table of all trainings, and the claims."""
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
    """Draw held-out EM, and the shares of episodes with a summary and with a backtrack, by step, with a line
    for each training; returns the paths of the pictures."""
    titles = {
        "EM all": "Held-out exact match",
        "summary": "Episodes with a summary",
        "backtrack": "Episodes with a backtrack",
    }

    def paint(*panels: Any) -> None:
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
