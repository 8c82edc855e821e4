"""The record of a supervised run: each attempt at training, its changed settings, and how it ended.

An attempt is one run of the training process. A line is appended to `attempts.jsonl` in the run's folder when
an attempt begins, when a sign shows, and when the attempt ends. `attempts.md` shows the same as a table, with
a picture of all attempts; it is rewritten whenever an attempt ends.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_r1.io.atomic_files import write_text
from rag_r1.runs.json_lines import JsonLinesFile
from rag_r1.runs.markdown import Page, cell, number
from rag_r1.runs.pictures import GREY, SERIES, draw, whole_steps
from rag_r1.training.guard.history import History, Series
from rag_r1.training.guard.signs import Sign, Verdict
from rag_r1.training.metrics_files import MetricsFile

if TYPE_CHECKING:
    from rag_r1.runs.pictures import Axes

#: Names of the files in the run's folder.
RECORD, PAGE, PICTURE = "attempts.jsonl", "attempts.md", "attempts.png"
#: Name of the lock file that is held while a run is supervised.
SUPERVISOR_LOCK = "supervisor.lock"


@dataclass
class Attempt:
    """One run of the training process, from a checkpoint or from the beginning."""

    #: Counts from 1.
    number: int
    #: The step of the checkpoint from which the attempt resumed; 0 if it started from the beginning.
    first: int
    #: Overrides that differ from those of the user.
    changes: list[str]
    #: Name of the file with the attempt's metrics.
    metrics: str
    #: The signs that showed, as lines of the record.
    signs: list[dict[str, Any]] = field(default_factory=list)
    #: How the attempt ended; empty while it runs.
    ending: str = ""
    #: The last step of the attempt.
    last: int | None = None
    #: The step to which the run went back after a sign; None if it did not go back.
    back_to: int | None = None


class Attempts:
    """All attempts of the run in `folder`, including those of earlier commands, which the record holds.

    Raises RunError for a line of the record that cannot be read, and OSError if the folder or the record
    cannot be opened. `begin`, `add_sign` and `end` raise RunError if the disk is full; `end` raises OSError
    if only the page cannot be written.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.all: list[Attempt] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._file = JsonLinesFile(folder / RECORD, lambda line, _: self._add_event(line))

    @property
    def rollbacks(self) -> int:
        """The number of attempts after which the run went back because of a sign."""
        return sum(attempt.back_to is not None for attempt in self.all)

    def begin(self, first: int, changes: list[str], metrics: Path) -> Attempt:
        """Record that an attempt begins after the step `first`, and return the attempt."""
        self._append("begin", len(self.all) + 1, first=first, changes=changes, metrics=metrics.name)
        return self.all[-1]

    def add_sign(self, sign: Sign, step: int) -> None:
        """Record a sign that showed at `step` of the current attempt."""
        self._append("sign", len(self.all), step=step, **{**asdict(sign), "verdict": sign.verdict.name})

    def end(self, ending: str, step: int | None, back_to: int | None = None) -> None:
        """Record that the current attempt has ended after `step`, and write the page. With `back_to`, the run
        goes back to that step because of a sign."""
        self._append("end", len(self.all), ending=ending, last=step, back_to=back_to)
        self.write_page()

    def _append(self, event: str, attempt: int, **values: Any) -> None:
        """Append a line on the attempt with this number to the record."""
        self._file.append({"event": event, "attempt": attempt, "time": round(time.time(), 1), **values})

    def _add_event(self, line: dict[str, Any]) -> None:
        """Update the attempts by a line of the record."""
        event = line["event"]
        values = {key: value for key, value in line.items() if key not in ("event", "attempt", "time")}
        if event == "begin":
            self.all.append(Attempt(line["attempt"], **values))
        elif not self.all:
            raise ValueError("no attempt begins before it")
        elif event == "sign":
            self.all[-1].signs.append(values)
        else:
            self.all[-1] = replace(self.all[-1], **values)

    def write_page(self) -> None:
        """Write `attempts.md` and its picture. Raises OSError."""
        page = Page("Attempts of this training")
        page.text(
            "Each attempt is a start of the training, and goes on from a checkpoint of the one before. Right "
            "answers: their share of the training's trajectories, in the attempt's first step, at best, and "
            "in its last step."
        )
        series = [self._series(attempt) for attempt in self.all]
        page.pictures(draw(self.folder / PICTURE, lambda axes: self._paint(axes, series), size=(7.0, 3.2)))
        rows = [self._row(attempt, right) for attempt, (right, _) in zip(self.all, series, strict=True)]
        page.table(["attempt", "steps", "changed settings", "right answers", "ended"], rows, "rllll")
        signs = [
            f"attempt {attempt.number}, step {sign['step']}: "
            f"{sign['verdict'].lower().replace('_', ' ')}: {cell(sign['cause'])}"
            for attempt in self.all
            for sign in attempt.signs
        ]
        page.heading("Signs").bullets(signs or ["none"])
        write_text(self.folder / PAGE, f"{page}\n")

    def _row(self, attempt: Attempt, right: Series) -> list[object]:
        """Return an attempt's row of the page's table. `right` is its share of right answers in training."""
        last = attempt.last if attempt.last is not None else max(right.steps, default=attempt.first)
        points = (right.values[0], max(right.values), right.values[-1]) if len(right) else ()
        shares = " → ".join(number(value, 2) for value in points) or "–"
        changes = ", ".join(map(cell, attempt.changes)) or "none"
        steps = f"{attempt.first + 1} to {last}" if last > attempt.first else "none"
        return [attempt.number, steps, changes, shares, cell(attempt.ending or "runs")]

    def _series(self, attempt: Attempt) -> tuple[Series, Series]:
        """Return an attempt's shares of right answers in training and on held-out questions."""
        history = History()
        for step, metrics in MetricsFile(self.folder / attempt.metrics).new_lines():
            history.add(step, metrics)
        return history.right, history.held_out

    def _paint(self, axes: Axes, series: list[tuple[Series, Series]]) -> None:
        """Draw the curves of all attempts, and a vertical line where a sign ended one."""
        for attempt, (right, held_out) in zip(self.all, series, strict=True):
            color = SERIES[(attempt.number - 1) % len(SERIES)]
            axes.plot(right.steps, right.values, "-", color=color, label=f"attempt {attempt.number}")
            axes.plot(held_out.steps, held_out.values, "o", color=color)
        for attempt in self.all:
            ended = any(Verdict[sign["verdict"]] > Verdict.WARN for sign in attempt.signs)
            if ended and attempt.last is not None:
                axes.axvline(attempt.last, color=GREY, linestyle=":")
        axes.set(xlabel="step", ylabel="right answers (points: held out)", ylim=(0, 1.03))
        whole_steps(axes)
        axes.legend(frameon=False)
