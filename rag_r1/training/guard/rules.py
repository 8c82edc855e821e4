"""The known signs that a training goes wrong, one rule for each.

A rule is a function of the history so far that yields a `Sign` if its sign shows in the last step. Most rules
compare the mean of the last `window` steps with the best such mean before, because the level of a training
that learns is not known in advance. The thresholds are the options under `rag_r1.guard` (config/guard.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from rag_r1.config.guard import GuardOptions
from rag_r1.training.guard.history import History, Series, at_steps, best_window, mean
from rag_r1.training.guard.signs import Sign, TrainingFacts, Verdict, find_fall, sign_by_right_answers

#: How many times as long as `window` the window is in which a slow fall shows.
_LONG_FACTOR = 4
#: The smallest loss of right answers on held-out questions that counts. A smaller one may be chance, even in
#: validations of 100 questions.
_HELD_OUT_LOSS = 0.1
#: Number of first steps whose median is the initial entropy, and after which the usual norm of a gradient is
#: known.
_START_STEPS = 4
#: veRL's metric of the most updates in a step by which the oldest weights of a trajectory are behind.
_STALENESS = "training/off_policy/trajectory_staleness_worst/max"

Rule = Callable[[History, GuardOptions, TrainingFacts], Iterator[Sign]]


class _Change(NamedTuple):
    """The change of a metric from its best window to the last one."""

    #: The means in these two windows.
    before: float
    now: float
    #: The first step of the last window.
    since: int


def right_answers_fall(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """The share of right answers in training falls: by twice `right_loss` in one step, or by `right_loss` in
    the mean of a short or a long window."""
    max_loss, window = options.right_loss, options.window
    limits = ((1, 2 * max_loss), (window, max_loss), (_LONG_FACTOR * window, max_loss))
    falls = (find_fall(history, steps, loss, options.right_deviations) for steps, loss in limits)
    if fall := next(filter(None, falls), None):
        text = f"right answers fell from {fall.before:.2f} to {fall.now:.2f}"
        if fall.verdict is Verdict.STOP:
            text += f" while the reward rose from {fall.reward_before:.2f} to {fall.reward_now:.2f}"
            text += _paying_term(history, facts, fall.best_steps)
        yield Sign("right_answers", fall.verdict, text, fall.since)


def _paying_term(history: History, facts: TrainingFacts, best_steps: Sequence[int]) -> str:
    """Return the end of a sentence, which names the term of the reward that rose most since the share of
    right answers was best."""
    gains = {}
    for term, weight in facts.terms.items():
        series = history[f"search/{term}"]
        # A validation before the first step has no training step beside it: take the first one.
        before = at_steps(series, best_steps) or series.values[:1]
        now = at_steps(series, [history.step])
        if before and now:
            gains[term] = weight * (now[-1] - mean(before))
    term = max(gains, key=lambda name: gains[name], default=None)
    if term is None or gains[term] <= 0:
        return ": it pays for something else"
    return f": it pays for {term} (weight {facts.terms[term]:g}), which brought {gains[term]:+.2f}"


def held_out_falls(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """The share of right answers in a validation falls below that of the best one."""
    series = history.held_out
    if len(series) < 2 or series.steps[-1] != history.step:
        return
    best, now = max(series.values[:-1]), series.values[-1]
    if best - now >= max(options.right_loss * best, _HELD_OUT_LOSS):
        text = f"right answers held out fell from {best:.2f} to {now:.2f}"
        steps = [series.steps[series.values.index(best)], history.step]
        rewards = at_steps(history["held_out_score"], steps)
        verdict = Verdict.ROLL_BACK
        if len(rewards) == 2 and rewards[1] > rewards[0]:
            verdict = Verdict.STOP
            text += f" while their reward rose from {rewards[0]:.2f} to {rewards[1]:.2f}"
            text += _paying_term(history, facts, steps[:1])
        yield Sign("held_out", verdict, text, series.steps[-2] + 1)


def searches_vanish(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """The policy stops searching."""
    if change := _change_from_best(history["search/searches"], history, options):
        if change.now < options.searches_left * change.before:
            text = f"searches a question fell from {change.before:.2f} to {change.now:.2f}"
            yield sign_by_right_answers("searches", text, change.since, history, options)


def actions_become_invalid(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """More turns than before are neither a search nor an answer."""
    if change := _change_from_best(history["search/valid_actions"], history, options):
        if change.before - change.now > options.valid_loss:
            text = f"valid turns fell from {change.before:.0%} to {change.now:.0%}"
            yield sign_by_right_answers("valid_actions", text, change.since, history, options)


def likelihood_falls(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """The likelihood of right answers falls, which precedes a collapse (arXiv 2512.04220)."""
    if change := _change_from_best(history["search/logprob_right"], history, options):
        before, now = change.before, change.now
        if now < before - options.logprob_loss and now < options.logprob_factor * before:
            text = f"the mean log-prob of right answers' tokens fell from {before:.3f} to {now:.3f}"
            yield sign_by_right_answers("logprob_right", text, change.since, history, options)


def entropy_explodes(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """The policy becomes noise: its entropy, the mean -log p of the sampled tokens, rises."""
    series = history["search/logprob"]
    if len(series) < _START_STEPS + options.window or series.steps[-1] != history.step:
        return
    start, now = -median(series.values[:_START_STEPS]), -series.recent(options.window)
    if now > start + options.entropy_gain and now > options.entropy_factor * start:
        text = f"the entropy rose from {start:.3f} to {now:.3f} nats a token"
        yield sign_by_right_answers("entropy", text, series.since(options.window), history, options)


def exploration_ends(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """The policy always answers a question in the same way, so a step teaches little. This is only noted,
    since the policy may have learned everything."""
    flat, logprob = history["search/groups_without_signal"], history["search/logprob"]
    window, texts = options.window, []
    if len(flat) >= window and (share := flat.recent(window)) > options.flat_groups:
        texts.append(f"{share:.0%} of the groups have no signal")
    if len(logprob) >= _START_STEPS + window:
        start, now = -median(logprob.values[:_START_STEPS]), -logprob.recent(window)
        if now < options.entropy_left * start:
            texts.append(f"the entropy fell from {start:.3f} to {now:.3f} nats a token")
    if texts and history.now("search/score") is not None:
        text = f"{' and '.join(texts)}: what can be learned is learned, or the policy tries nothing new"
        yield Sign("exploration", Verdict.NOTE, text, history.step)


def engine_disagrees(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """The engine generates with weights that differ from the actor's. Steps in which an asynchronous trainer
    has trajectories of earlier weights do not count, since these differ without a fault."""
    lags = history[_STALENESS] if facts.is_asynchronous else Series()
    stale_steps = {step for step, lag in zip(lags.steps, lags.values, strict=True) if lag > 0}
    gaps = [("training/rollout_probs_diff_mean", options.probability_gap, "probabilities")]
    if facts.is_first_kl_zero:
        gaps.append(("actor/ppo_kl", options.stale_kl, "log-probs"))
    for name, limit, kind in gaps:
        pairs = zip(history[name].steps, history[name].values, strict=True)
        window = [(step, abs(gap)) for step, gap in pairs if step not in stale_steps][-options.window :]
        is_whole = len(window) == options.window and window[-1][0] == history.step
        if is_whole and min(gap for _, gap in window) > limit:
            text = (
                f"the {kind} of engine and actor differ by {window[-1][1]:.4f} ({name}), so the engine has "
                "other weights"
            )
            yield Sign("engine", Verdict.ROLL_BACK, text, window[0][0])


def metrics_are_not_finite(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """A metric is NaN or infinite."""
    for name in ("actor/grad_norm", "actor/loss", "search/score"):
        if (value := history.now(name)) is not None and not math.isfinite(value):
            yield Sign("not_finite", Verdict.ROLL_BACK, f"{name} is {value}", history.step)
            return


def gradient_jumps(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """The norm of the gradient is far larger than usual."""
    before, now = history["actor/grad_norm"].values[:-1], history.now("actor/grad_norm")
    if now is None or len(before) < _START_STEPS:
        return
    typical = median(before)
    if math.isfinite(now) and now > options.gradient_factor * typical:
        text = f"the norm of the gradient is {now:.3g}, usually {typical:.3g}"
        yield Sign("gradient", Verdict.WARN, text, history.step)


def observations_are_trained(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """The loss is computed on tokens that the policy did not generate."""
    trained, generated = history.now("search/trained_tokens"), history.now("search/generated_tokens")
    if trained is not None and generated and trained > options.trained_excess * generated:
        text = (
            f"the loss is computed on {trained:.0f} tokens of a trajectory, of which the policy generated "
            f"{generated:.0f}: the response mask lets observations be trained on"
        )
        yield Sign("mask", Verdict.STOP, text, history.step)


def trajectories_are_masked(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """Many trajectories are masked or many calls fail, which leaves little to train on."""
    text = "of the trajectories are masked"
    yield from _above("masked", "search/masked", options.masked, text, history, options)
    calls, failed = (history[f"search/{name}"] for name in ("calls", "failed_calls"))
    if min(len(calls), len(failed)) >= options.window and history.now("search/failed_calls") is not None:
        share = failed.recent(options.window) / max(calls.recent(options.window), 1e-9)
        if share > options.masked:
            yield Sign("tools", Verdict.WARN, f"{share:.0%} of the calls fail", failed.since(options.window))


def answers_are_cut_off(history: History, options: GuardOptions, facts: TrainingFacts) -> Iterator[Sign]:
    """Many trajectories reach the limit of their length."""
    # Not veRL's response_length/clip_ratio: its limit is the longest row of the batch.
    name = "search/token_limit"
    yield from _above("cut_off", name, options.cut_off, "of the trajectories are cut off", history, options)


#: All rules. Their order is that of signs with the same verdict.
RULES: tuple[Rule, ...] = (
    metrics_are_not_finite,
    observations_are_trained,
    held_out_falls,
    right_answers_fall,
    searches_vanish,
    actions_become_invalid,
    likelihood_falls,
    entropy_explodes,
    exploration_ends,
    engine_disagrees,
    gradient_jumps,
    trajectories_are_masked,
    answers_are_cut_off,
)


def _change_from_best(series: Series, history: History, options: GuardOptions) -> _Change | None:
    """Return the change of a metric from its best window to the last one, or None if there are too few
    values, or if the last step has none."""
    window = options.window
    if len(series) < 2 * window or series.steps[-1] != history.step:
        return None
    best_mean, _ = best_window(series, window)
    return _Change(best_mean, series.recent(window), series.since(window))


def _above(
    sign: str, name: str, limit: float, text: str, history: History, options: GuardOptions
) -> Iterator[Sign]:
    """Yield a warning if the mean of the last values of the metric `name`, a share, is above `limit`."""
    series = history[name]
    if len(series) >= options.window and history.now(name) is not None:
        value = series.recent(options.window)
        if value > limit:
            yield Sign(sign, Verdict.WARN, f"{value:.0%} {text}", series.since(options.window))
