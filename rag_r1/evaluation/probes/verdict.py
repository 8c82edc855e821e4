"""Draws the verdict from the figures of the probe suite, and explains it in sentences.

The figures are those of metrics.py, as search_card.json has them: each condition has `em`, `questions`,
`episodes` and `failed`, and each but the real run the differences from it. The verdict depends on
`over_half`, the EM less half of the real run's, in the conditions in which the policy cannot find the
evidence (`WITHOUT_EVIDENCE`). If its interval is below 0 in all of them that were run, the EM without the
evidence is less than half of that with it: the policy searches. If the interval is above 0 with a closed
book, the policy already knows the answers. If neither holds, the verdict is mixed or open (`_verdict_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rag_r1.evaluation.report.report_markdown import MANY_FAILED

Verdict = Literal["searches", "knows", "mixed", "open"]
REAL = "real"
#: The conditions in which the policy cannot find the evidence.
WITHOUT_EVIDENCE = ("closed_book", "empty", "random", "withheld")
#: The names of the conditions in sentences and tables.
CONDITION_NAMES = {
    "real": "the real run",
    "closed_book": "a closed book",
    "empty": "empty results",
    "random": "random passages",
    "gold": "the gold passages",
    "withheld": "the evidence withheld",
}
#: The fewest questions per condition with which a verdict is given.
MIN_QUESTIONS = 20


def verdict(conditions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the `verdict`, one of Verdict, and `sentences`: the accuracy, the verdict, and remarks, in this
    order."""
    over_half = {name: conditions[name]["over_half"] for name in WITHOUT_EVIDENCE if name in conditions}
    name, sentence = _verdict_of(over_half)
    return {"verdict": name, "sentences": [_accuracy(conditions), sentence, *_remarks(conditions)]}


def _verdict_of(over_half: Mapping[str, Mapping[str, Any]]) -> tuple[Verdict, str]:
    """Return the verdict and its sentence. `over_half` has that difference for each condition without
    evidence."""
    if not over_half or any(difference["questions"] < MIN_QUESTIONS for difference in over_half.values()):
        return "open", f"Too few questions for a verdict: it takes {MIN_QUESTIONS} in each condition."
    sides = {name: _side(difference) for name, difference in over_half.items()}
    if all(side == "below" for side in sides.values()):
        share = "less than half of what it answers with it"
        return "searches", f"It searches: without the evidence it answers {share}."
    if sides.get("closed_book") == "above":
        share = "more than half of what it answers with search"
        return "knows", f"It already knows: with a closed book it answers {share}."
    if over := [name for name, side in sides.items() if side == "above"]:
        share = "more than half of its right answers"
        below = _names(name for name, side in sides.items() if side == "below")
        others = f", but less than half with {below}" if below else ""
        return "mixed", f"Mixed: it keeps {share} with {_names(over)}{others}."
    undecided = _names(name for name, side in sides.items() if side == "open")
    return "open", f"Open: with {undecided} it may keep more or less than half of its right answers."


def _side(difference: Mapping[str, Any]) -> Literal["below", "above", "open"]:
    """Return whether the interval of a difference is below or above 0; `open` if it contains 0 or is
    missing."""
    if (difference["high"] or 0) < 0:
        return "below"
    return "above" if (difference["low"] or 0) > 0 else "open"


def _accuracy(conditions: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the sentence about the EM with search and with a closed book."""
    sentence = f"It answers {percent(conditions[REAL]['em'])} of the questions with its search"
    closed = conditions.get("closed_book")
    return f"{sentence}, and {percent(closed['em'])} with a closed book." if closed else f"{sentence}."


def _remarks(conditions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return remarks about the gold passages, the closed book and the failures."""
    remarks = []
    if gold := conditions.get("gold"):
        real, ideal = percent(gold["real_there"]), percent(gold["em"])
        sentences = {
            "above": f"A better search would help: {real} with its own, {ideal} with the gold passages.",
            "below": f"The gold passages make it worse: {real} with its own search, {ideal} with them.",
            "open": f"The gold passages make no difference that shows: {real} without, {ideal} with them.",
        }
        remarks.append(sentences[_side(gold["difference"])])
    if (closed := conditions.get("closed_book")) and _side(closed["difference"]) == "above":
        remarks.append("Searching makes it worse: with a closed book it answers more.")
    if many := [name for name, run in conditions.items() if run["failed"] > MANY_FAILED * run["episodes"]]:
        remarks.append(f"Many episodes failed, so that these figures are of a selection: {_names(many)}.")
    return remarks


def percent(figure: Mapping[str, Any]) -> str:
    """Return a share with its interval in percent, such as `95 % [91, 98]`; a dash without a value."""
    if figure["value"] is None:
        return "–"
    ends = [figure["low"], figure["high"]]
    interval = "" if None in ends else f" [{', '.join(f'{100 * end:.0f}' for end in ends)}]"
    return f"{100 * figure['value']:.0f} %{interval}"


def _names(names: Iterable[str]) -> str:
    """Return the names of conditions as a list in a sentence."""
    return ", ".join(CONDITION_NAMES[name] for name in names)
