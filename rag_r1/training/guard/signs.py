"""What a sign is, and when right answers have become fewer, on which its verdict depends.

Where right answers have not become fewer, there is a warning at most: a policy that searches less may have
learned to. Where they have, and the reward has fallen with them, the policy is broken: an earlier checkpoint
and a smaller step may help, so the verdict is to roll back. Where they have become fewer and the reward has
not fallen, it is the reward that pays for something else. No restart changes that: the verdict is to stop.
`search/right` is the share of right answers whatever the reward pays for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from rag_r1.config.guard import GuardOptions
from rag_r1.training.guard.history import History, at_steps, best_window

#: Part of the best share of right answers, and deviations, by which fewer right answers count as fewer for
#: other signs.
_FEWER, _FEWER_DEVIATIONS = 0.1, 2.0


class Verdict(IntEnum):
    """What should be done about a sign, the mildest first."""

    NOTE = 1
    WARN = 2
    ROLL_BACK = 3
    STOP = 4


@dataclass(frozen=True)
class Sign:
    """A sign that shows since the step `since`. `cause`: a sentence with its figures."""

    name: str
    verdict: Verdict
    cause: str
    since: int


@dataclass(frozen=True)
class TrainingFacts:
    """What the rules know of a training's configuration."""

    #: The weights of the terms of the reward, by name.
    terms: Mapping[str, float] = field(default_factory=dict)
    #: The questions of a step, if they are drawn at random.
    questions: int | None = None
    #: Whether the log-probs before the only update of a step are those of the engine, so that their KL tells
    #: whether the engine has the weights.
    is_first_kl_zero: bool = False


@dataclass(frozen=True)
class Fall:
    """The share of right answers fell from its best to now; with it, the mean reward."""

    before: float
    now: float
    reward_before: float
    reward_now: float
    since: int
    best_steps: tuple[int, ...]

    @property
    def verdict(self) -> Verdict:
        """STOP if the reward rose meanwhile, else ROLL_BACK."""
        return Verdict.STOP if self.reward_now > self.reward_before else Verdict.ROLL_BACK


def find_fall(history: History, window: int, loss: float, deviations: float) -> Fall | None:
    """Returns the fall of right answers, if in the last window they are fewer than in the best one by this
    part of it, and by so many standard deviations of a window's mean more than chance explains. By chance the
    best of n windows is about sqrt(2 ln n) deviations above the others, if their means are normally
    distributed."""
    series = history.right
    if len(series) < 2 * window or series.steps[-1] != history.step:
        return None
    before, best_end = best_window(series, window)
    now = series.recent(window)
    chance = deviations + math.sqrt(2 * math.log(len(series.windows(window))))
    deviation = history.right_deviation((before + now) / 2)
    if before - now < max(loss * before, chance * deviation / math.sqrt(window), 1e-9):
        return None
    best_steps = tuple(series.steps[best_end - window + 1 : best_end + 1])
    reward = history["search/score"]
    rewards = [at_steps(reward, steps) or [0.0] for steps in (best_steps, series.steps[-window:])]
    reward_before, reward_now = (sum(values) / len(values) for values in rewards)
    return Fall(before, now, reward_before, reward_now, series.since(window), best_steps)


def mild_fall(history: History, options: GuardOptions) -> Fall | None:
    """Returns the fall of right answers by the measure that other signs use: less strict than their own
    sign's."""
    return find_fall(history, options.window, _FEWER, _FEWER_DEVIATIONS) or find_fall(
        history, 1, 2 * _FEWER, _FEWER_DEVIATIONS
    )


def sign_by_right_answers(name: str, text: str, since: int, history: History, options: GuardOptions) -> Sign:
    """Makes a sign whose verdict depends on the right answers: WARN unless they have become fewer."""
    fall = mild_fall(history, options)
    if fall is None:
        return Sign(name, Verdict.WARN, text, since)
    text += f", and right answers from {fall.before:.2f} to {fall.now:.2f}"
    return Sign(name, fall.verdict, text, min(since, fall.since))
