"""Writes the result page of the comparison of single-query (`sq`) and multi-query (`mq`) search.

`run.py` passes its settings and, for each seed, the figures of both arms by group of questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rag_r1.runs.markdown import Claim, Page

#: Published figures of RAG-R1 (arXiv 2507.02962, Qwen2.5-7B-Instruct), not measured here. EM is the mean of
#: seven sets; rounds (retrievals) and seconds of a question are means of HotpotQA and 2WikiMultihopQA.
PAPER = {
    "sq": {"em": 0.439, "rounds": 2.53, "seconds": 8.21},
    "mq": {"em": 0.455, "rounds": 2.15, "seconds": 7.42},
}
#: The kinds of search that are compared: one query in a turn, and several.
ARMS = ("sq", "mq")
#: The group of questions about which the claim is made.
TWO_FACTS = "two independent facts"
#: How the policies were trained, unless --policies or --untrained chose others.
_TRAINING = " with PPO, sq for EM, mq for EM less 0.05 a turn of a right answer"
_HEAD = ("", "EM sq", "EM mq", "rounds sq", "rounds mq", "change", "seconds sq", "seconds mq", "change")
#: Part of the claim, on questions with two independent facts -> a figure, and the largest relative change of
#: it from sq to mq for which the part holds.
CRITERIA = {
    "at least 45 % fewer search rounds": ("rounds", -0.45),
    "at least 25 % less time a question": ("seconds", -0.25),
}


def relative_change(figures: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    """Return the relative change of a figure from sq to mq, or None if that of sq is 0."""
    before, after = figures["sq"][name], figures["mq"][name]
    return (after - before) / before if before else None


def criteria_met(figures: Mapping[str, Mapping[str, float]]) -> dict[str, bool]:
    """Return for each part of the claim whether it holds for these figures of sq and mq."""
    results = {"EM at least as high": figures["mq"]["em"] >= figures["sq"]["em"]}
    for criterion, (name, limit) in CRITERIA.items():
        change = relative_change(figures, name)
        results[criterion] = change is not None and change <= limit + 1e-9  # tolerates rounding
    return results


def markdown(results: Mapping[str, Any]) -> str:
    """Return the page in Markdown, with a table of the figures, the claims, and the paper's figures."""
    settings, runs = results["settings"], results["runs"]
    seeds = ", ".join(str(run["seed"]) for run in runs)
    policies = settings["policies"]
    label = policies if isinstance(policies, str) else " and ".join(policies)
    label += _TRAINING if label == "trained" else ""
    page = Page("Several queries in a turn, or one").text(
        f"{settings['questions']} held-out questions of the demo's world a seed (seeds: {seeds}; policies: "
        f"{label}), greedy, one in flight, {settings['search_s']:g} s per search. Rounds are turns with a "
        "search."
    )
    page.table(_HEAD, _rows(runs))
    page.text(f"On questions with {TWO_FACTS}, several queries in a turn have, against one:")
    return str(page.bullets(_claims(runs)).text(_paper()))


def _rows(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row with means over the seeds for each group of questions.

    If there are several seeds, a row for each follows, with its figures on two independent facts.
    """
    rows = [[group, *_cells(mean_figures(runs, group))] for group in runs[0]["sq"]]
    if len(runs) > 1:
        for run in runs:
            figures = {arm: run[arm][TWO_FACTS] for arm in ARMS}
            rows.append([f"{TWO_FACTS}, seed {run['seed']}", *_cells(figures)])
    return rows


def mean_figures(runs: Sequence[Mapping[str, Any]], group: str) -> dict[str, dict[str, float]]:
    """Return arm -> figure -> its mean over the seeds, for a group of questions."""
    names = ("em", "rounds", "seconds")
    return {arm: {name: fmean(run[arm][group][name] for run in runs) for name in names} for arm in ARMS}


def _cells(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the cells of a row after its name, in the order of _HEAD."""
    cells = [f"{figures[arm]['em']:.2f}" for arm in ARMS]
    for name in ("rounds", "seconds"):
        change = relative_change(figures, name)
        cells += [f"{figures[arm][name]:.2f}" for arm in ARMS]
        cells.append("–" if change is None else f"{100 * change:+.0f} %")
    return cells


def _claims(runs: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Return each part of the claim, with the number of seeds for which it holds."""
    results = [criteria_met({arm: run[arm][TWO_FACTS] for arm in ARMS}) for run in runs]
    return [Claim(part, sum(result[part] for result in results), len(runs)) for part in results[0]]


def _paper() -> str:
    """Return the sentence with the paper's figures."""
    sq, mq = PAPER["sq"], PAPER["mq"]
    rounds, seconds = (100 * (mq[name] / sq[name] - 1) for name in ("rounds", "seconds"))
    return (
        "The paper, for orientation (published, not measured here: a 7B model, Wikipedia, all kinds of "
        f"multi-hop questions): EM {sq['em']:.3f} with one query and {mq['em']:.3f} with several; "
        f"{sq['rounds']} and {mq['rounds']} retrievals a question ({rounds:+.0f} %), {sq['seconds']} and "
        f"{mq['seconds']} s ({seconds:+.0f} %)."
    )
