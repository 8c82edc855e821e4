"""What a sign is, and how its verdict depends on the share of right answers.

- If the share of right answers has not fallen, the verdict is a warning at most: a policy that searches less,
  for example, may have learned to need less.
- If it has fallen and the reward has not risen, the policy is broken. An earlier checkpoint and a smaller
  learning rate may help, so the verdict is to roll back.
- If it has fallen while the reward has risen, the reward pays for something other than right answers. No
  restart changes that, so the verdict is to stop.

The share is the metric `search/right` or, in runs of earlier versions, `search/em`. Neither depends on what
the reward pays for. A run without gold answers logs neither, and its mean reward stands for the share: then a
fall is one of the reward, and the verdict is never to stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from rag_r1.config.guard import GuardOptions
from rag_r1.training.guard.history import History, at_steps, best_window, mean

#: The smallest fall of right answers that decides the verdict of another sign: this part of their best share,
#: and this number of standard deviations.
_MILD_LOSS, _MILD_DEVIATIONS = 0.1, 2.0
#: Differences of shares up to this may come from rounding.
_ROUNDING = 1e-9


class Verdict(IntEnum):
    """What should be done about a sign, the mildest first."""

    NOTE = 1
    WARN = 2
    ROLL_BACK = 3
    STOP = 4


@dataclass(frozen=True)
class Sign:
    """A sign that a training goes wrong."""

    name: str
    verdict: Verdict
    #: A sentence with the figures.
    cause: str
    #: The first step in which the sign showed.
    since: int


@dataclass(frozen=True)
class TrainingFacts:
    """The parts of a training's configuration that the rules (rules.py) need."""

    #: The weights of the reward's terms, by name.
    terms: Mapping[str, float] = field(default_factory=dict)
    #: The number of questions in a step if they are drawn at random, else None.
    questions: int | None = None
    #: Whether the KL before a step's only update should be 0. It compares the actor with the engine's
    #: log-probs, so a larger KL means that the engine has other weights.
    is_first_kl_zero: bool = False
    #: Whether trajectories may have been generated with earlier weights than those that they train.
    is_asynchronous: bool = False


@dataclass(frozen=True)
class Fall:
    """A fall of the share of right answers from its best window to the last one."""

    #: The share of right answers in the best window, and in the last one.
    before: float
    now: float
    #: The mean reward in the same windows; both are 0 if one of them has none.
    reward_before: float
    reward_now: float
    #: The first step of the last window.
    since: int
    #: The steps of the best window.
    best_steps: tuple[int, ...]

    @property
    def verdict(self) -> Verdict:
        """STOP if the reward has risen from the best window to the last one, else ROLL_BACK."""
        return Verdict.STOP if self.reward_now > self.reward_before else Verdict.ROLL_BACK


def find_fall(history: History, window: int, loss: float, deviations: float) -> Fall | None:
    """Return the fall of right answers from the best window to the last one, or None.

    There is none if fewer than two windows of steps have a share, or the last step has none. The fall has to
    be at least the part `loss` of the best share, and `deviations` standard deviations of a window's mean
    more than chance explains. The best of n windows is about sqrt(2 ln n) deviations above the others by
    chance, if their means are normally distributed.
    """
    series = history.right
    if len(series) < 2 * window or series.steps[-1] != history.step:
        return None
    before, best_end = best_window(series, window)
    now = series.recent(window)
    chance = deviations + math.sqrt(2 * math.log(len(series.windows(window))))
    deviation = history.right_deviation((before + now) / 2)
    if before - now < max(loss * before, chance * deviation / math.sqrt(window), _ROUNDING):
        return None
    best_steps = tuple(series.steps[best_end - window + 1 : best_end + 1])
    reward = history["search/score"]
    rewards = [at_steps(reward, steps) for steps in (best_steps, series.steps[-window:])]
    reward_before, reward_now = map(mean, rewards) if all(rewards) else (0.0, 0.0)
    return Fall(before, now, reward_before, reward_now, series.since(window), best_steps)


def mild_fall(history: History, options: GuardOptions) -> Fall | None:
    """Return a fall of right answers that is large enough to decide the verdict of another sign, or None. The
    limits are lower than those of the rule for right answers themselves. If there is no such fall of the mean
    of `options.window` steps, a sudden one counts, from the best single step to the last step, if it loses
    twice as much."""
    fall = find_fall(history, options.window, _MILD_LOSS, _MILD_DEVIATIONS)
    return fall or find_fall(history, 1, 2 * _MILD_LOSS, _MILD_DEVIATIONS)


def sign_by_right_answers(name: str, cause: str, since: int, history: History, options: GuardOptions) -> Sign:
    """Return a sign whose verdict is that of the fall of right answers, or WARN if they have not fallen.
    `cause` is then completed by the fall."""
    fall = mild_fall(history, options)
    if fall is None:
        return Sign(name, Verdict.WARN, cause, since)
    cause += f", and right answers from {fall.before:.2f} to {fall.now:.2f}"
    return Sign(name, fall.verdict, cause, min(since, fall.since))
