"""A histogram of rollouts until the first right one, as text and as a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rag_r1.io.atomic_files import atomic_file
from rag_r1.sft.difficulty_filter import NEVER

_WIDTH = 50
_LABEL = "rollouts until the first right answer"


def as_text(bars: Mapping[str, int]) -> str:
    """The histogram in lines; `bars` are the counts by number of rollouts, and of `never`."""
    most = max(bars.values(), default=1)
    lines = [_LABEL]
    for name, count in bars.items():
        lines.append(f"{name:>6}  {'#' * -(-count * _WIDTH // most)} {count}")
    return "\n".join(lines)


def draw(bars: Mapping[str, int], path: Path) -> None:
    """The same as a PNG. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colors = ["#9aa5b1" if name == NEVER else "#ea580c" if name == "1" else "#2563eb" for name in bars]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    drawn = axes.bar(list(bars), list(bars.values()), color=colors)
    axes.bar_label(drawn, fontsize=8, padding=1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel=_LABEL, ylabel="questions", title="Difficulty of the questions")
    with atomic_file(path) as part:
        figure.savefig(part, dpi=150, format="png")
    plt.close(figure)
