"""`rag-r1 train --supervise`: ends and restarts a training that goes wrong.

The supervisor starts veRL as `rag-r1 train` does, follows its metrics with the guard, and keeps good
checkpoints. It reacts to three events:

    a sign says roll back   The training is ended and set back to the last checkpoint from `margin` steps
                            before the sign or earlier. It is restarted with the next settings of
                            `rag_r1.guard.ladder`, at most `max_restarts` times.
    a sign says stop        The training is ended, because no restart would help.
    a crash or a hang       The training is restarted unchanged from its last checkpoint, unless it has ended
                            `max_restarts` times in a row without saving a new one.

A process that resumes from a checkpoint takes its weights, its optimizer and its position in the data from
there, in every trainer mode, and is not affected by what happened later. So supervision needs no hook inside
veRL. The supervisor itself may be killed, too: its whole state is in the run's folder, and the next run of
the command ends the processes that are left and resumes.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rag_r1.options.problems import Problem, error
from rag_r1.runs.errors import RunError
from rag_r1.runs.lock import hold_lock
from rag_r1.runs.processes import MARK, run_child_until, stop_leftovers
from rag_r1.training import metrics_files
from rag_r1.training.checkpoint_steps import last_whole_step, mend_tracker
from rag_r1.training.config_facts import SAVE_CONTENTS, saved_contents, saves_checkpoints
from rag_r1.training.guard.attempts import PAGE, SUPERVISOR_LOCK, Attempts
from rag_r1.training.guard.bands import BandCheck
from rag_r1.training.guard.checkpoints import Checkpoints
from rag_r1.training.guard.guard import Guard
from rag_r1.training.guard.signs import Sign, Verdict
from rag_r1.training.guard.watch import print_signs
from rag_r1.training.guard.watched_run import WatchedRun
from rag_r1.training.time_limit import TimeLimit, check_resume

LEARNING_RATE = "actor_rollout_ref.actor.optim.lr"
#: Makes the command of an attempt from its changed settings and its file of metrics.
Command = Callable[[Sequence[str], Path], Sequence[str]]


def check_supervision(config: Any) -> Iterator[Problem]:
    """Yield a Problem if a supervised training would lack metrics to follow or checkpoints to go back
    to."""
    yield from check_resume(config)
    if not metrics_files.logs_to_file(config):
        yield error("trainer.logger", "lacks `file`, whose lines are followed", "set it to [console,file]")
    if variable := metrics_files.log_variable(config):
        yield error(variable, "is set, but each attempt needs a file of its own", "unset it")
    if not saves_checkpoints(config):
        text = "is not above 0, so there is nothing to go back to"
        yield error("trainer.save_freq", text, "set it, e.g. to 10")
    if missing := {"model", "optimizer", "extra"} - set(saved_contents(config)):
        text = f"lacks {', '.join(sorted(missing))}, so a training cannot go on from it"
        yield error(SAVE_CONTENTS, text, "add them")


class Supervisor:
    """Supervises a run. `command` makes the command of each attempt, and `band` is the recipe's expected
    band."""

    def __init__(self, run: WatchedRun, command: Command, band: BandCheck | None = None):
        self.folder, self.records = run.folder, run.records
        self.options, self.rate = run.options, run.rate
        self.command = command
        self.band = band
        self.guard = Guard(run.options, run.facts)
        self.checkpoints = Checkpoints(self.folder, self.options.kept_checkpoints)

    def run(self, limit: TimeLimit | None = None) -> int | None:
        """Train to the end. Returns 0, or None if `limit` ended the training.

        Raises RunError with the cause if a sign ends the training for good, if the training crashes too
        often, if there is no room to go back, or if another command supervises it, and OSError if another
        file of the run cannot be written or removed.
        """
        busy_error = RunError(f"another command supervises {self.folder}: wait for it or end it")
        with hold_lock(self.folder, busy_error, name=SUPERVISOR_LOCK):
            if n_leftovers := stop_leftovers(self.folder):
                _print(f"ended {n_leftovers} processes of an earlier start")
            mend_tracker(self.folder)
            attempts = Attempts(self.folder)
            self._read_earlier_attempts(attempts)
            failures = 0
            while True:
                self._prepare(attempts)
                last_step = last_whole_step(self.folder)
                attempt = _AttemptRun(self, attempts, limit)
                status = attempt.run()
                if attempt.sign is not None:
                    self._after_sign(attempt.sign, attempts)
                    failures = 0
                elif attempt.reached_limit or status == 0:
                    attempts.end("the time limit" if attempt.reached_limit else "finished", self.guard.step)
                    return status
                else:
                    ending = "it hung" if status is None else f"it ended with status {status}"
                    failures = 0 if last_whole_step(self.folder) != last_step else failures + 1
                    self._after_crash(ending, failures, attempts)

    def changes(self, rollbacks: int) -> list[str]:
        """Return the overrides after so many rollbacks, which are those of all rungs used so far."""
        overrides = [override for rung in self.options.ladder[:rollbacks] for override in rung.set]
        rate = self.rate_after(rollbacks)
        return [f"{LEARNING_RATE}={rate:g}", *overrides] if rate != self.rate else overrides

    def rate_after(self, rollbacks: int) -> float:
        """Return the learning rate after so many rollbacks."""
        return self.rate * math.prod(rung.learning_rate for rung in self.options.ladder[:rollbacks])

    def _read_earlier_attempts(self, attempts: Attempts) -> None:
        """Give the guard the metrics of all steps before the checkpoint from which the run resumes, and
        record the end of an attempt whose supervisor was killed."""
        firsts = {attempt.metrics: attempt.first for attempt in attempts.all}
        for path in metrics_files.earlier_files(self.folder):
            self.guard.back_to(firsts.get(path.name, self.guard.step))
            for step, metrics in metrics_files.MetricsFile(path).new_lines():
                self.guard.see(step, metrics)
        if attempts.all and not attempts.all[-1].ending:
            attempts.end("the supervisor was ended", self.guard.step)
        self.guard.back_to(last_whole_step(self.folder) or 0)

    def _after_sign(self, sign: Sign, attempts: Attempts) -> None:
        """Record the step to which the run goes back. Raises RunError if a restart would not help, or if
        there have been `max_restarts` already."""
        step, page = self.guard.history.step, self.folder / PAGE
        last_trusted_step = sign.since - self.options.margin
        self.checkpoints.keep(last_trusted_step)
        good_step = self.checkpoints.newest_up_to(last_trusted_step)
        note = "there is no checkpoint from before"
        if good_step is not None:
            note = f"good: {self.checkpoints.path(good_step)}"
        if sign.verdict is Verdict.STOP:
            attempts.end(f"stopped: {sign.cause}", step)
            raise RunError(f"the training was stopped at step {step}: {sign.cause}; {note}; see {page}")
        rollbacks = attempts.rollbacks + 1
        if rollbacks > self.options.max_restarts:
            attempts.end(f"stopped after {rollbacks - 1} restarts: {sign.cause}", step)
            raise RunError(
                f"the training was stopped at step {step}, after {rollbacks - 1} restarts "
                f"(rag_r1.guard.max_restarts): {sign.cause}; {note}; see {page}"
            )
        attempts.end(f"rolled back to step {good_step or 0}: {sign.cause}", step, back_to=good_step or 0)

    def _prepare(self, attempts: Attempts) -> None:
        """Bring the folder, after a rollback, into the state from which the next attempt starts.

        If the supervisor is killed meanwhile, the next one repeats this, since the record of attempts still
        says which step to go back to.
        """
        step = attempts.all[-1].back_to if attempts.all else None
        if step is None:
            return
        self._move_records(step, len(attempts.all))
        self.checkpoints.go_back(step or None)
        # A kept checkpoint may be from before or after an earlier change of the rate.
        if step and any(rung.learning_rate != 1 for rung in self.options.ladder[: attempts.rollbacks]):
            self.checkpoints.set_learning_rate(step, self.rate_after(attempts.rollbacks))
        self.guard.back_to(step)
        changes = ", ".join(self.changes(attempts.rollbacks)) or "no change"
        _print(f"back to step {step}, with {changes}")

    def _after_crash(self, ending: str, failures: int, attempts: Attempts) -> None:
        """Record how the attempt ended, and prepare to resume from the last checkpoint. Raises RunError
        after too many `failures` in a row."""
        attempts.end(ending, self.guard.step)
        stop_leftovers(self.folder)
        if failures >= max(1, self.options.max_restarts):
            raise RunError(
                f"the training was given up: {ending}, and {failures} attempts in a row saved no "
                f"checkpoint; its last lines are above, and all attempts in {self.folder / PAGE}"
            )
        step = last_whole_step(self.folder) or 0
        self.guard.back_to(step)
        _print(f"{ending}; it goes on from step {step}")

    def _move_records(self, step: int, attempt: int) -> None:
        """Move the trajectories after `step`, to which the run goes back, into the folder of the attempt with
        this number."""
        if self.records is None:
            return
        for path in sorted(self.records.rglob("step_*")):
            record_step = path.name.split("_")[1].split("-")[0].split(".")[0]
            if record_step.isdecimal() and int(record_step) > step:
                target = self.folder / "attempts" / str(attempt) / path.relative_to(self.records)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)


def _print(text: str) -> None:
    print(f"supervisor: {text}", flush=True)


class _AttemptRun:
    """Runs the training once, until it ends or has to be ended."""

    def __init__(self, supervisor: Supervisor, attempts: Attempts, limit: TimeLimit | None):
        self.supervisor = supervisor
        self.attempts = attempts
        self.limit = limit
        #: The sign that ended the attempt; None if no sign did.
        self.sign: Sign | None = None
        #: Whether the time limit ended the attempt.
        self.reached_limit = False
        self.metrics = metrics_files.StartMetrics(metrics_files.next_metrics_file(supervisor.folder))
        #: When the last step ended or, before the first one, when the attempt started.
        self._last_step_time = time.monotonic()
        self._longest_step_s = 0.0
        #: Whether a step has ended. The time before the first one includes the start, and is not a step's.
        self._has_begun = False

    def run(self) -> int | None:
        """Train, and return the exit status, or None if the training had to be ended."""
        supervisor = self.supervisor
        changes = supervisor.changes(self.attempts.rollbacks)
        attempt = self.attempts.begin(last_whole_step(supervisor.folder) or 0, changes, self.metrics.path)
        self.metrics.path.touch()  # the next attempt gets another file, even if veRL does not open this one
        _print(f"attempt {attempt.number} begins after step {attempt.first}")
        environment = {**os.environ, MARK: str(supervisor.folder)}
        status = run_child_until(self._is_over, supervisor.command(changes, self.metrics.path), environment)
        self._read_metrics()
        with suppress(RunError):
            stop_leftovers(supervisor.folder)
        mend_tracker(supervisor.folder)
        return status

    def _is_over(self) -> bool:
        """Return whether the attempt has to be ended, because of a sign, the time limit or a hang."""
        if self._read_metrics():
            return True
        if self.limit is not None and self.limit.is_over():
            self.reached_limit = True
            return True
        options = self.supervisor.options
        max_wait_s = max(options.hang_s, options.hang_factor * self._longest_step_s)
        return time.monotonic() - self._last_step_time > max_wait_s

    def _read_metrics(self) -> bool:
        """Read new metrics and keep new checkpoints. Returns whether a sign ends the attempt."""
        supervisor = self.supervisor
        for entry in self.metrics.new_lines():
            if entry.is_whole:
                self._note_step()
            for sign in print_signs(entry, supervisor.guard, supervisor.band):
                self.attempts.add_sign(sign, entry.step)
                if sign.verdict > Verdict.WARN and self.sign is None:
                    self.sign = sign
            if self.sign is not None:
                return True
        # Only checkpoints whose step was judged are kept: veRL saves one before it logs the step's metrics.
        supervisor.checkpoints.keep(supervisor.guard.step)
        return False

    def _note_step(self) -> None:
        """Note that a step has ended now."""
        now = time.monotonic()
        if self._has_begun:
            self._longest_step_s = max(self._longest_step_s, now - self._last_step_time)
        self._has_begun = True
        self._last_step_time = now
