"""Writes the report of a run: is the trained agent better than the untrained model, and than plain RAG?

    report.json    all figures, and the plan without secrets
    report.md      a table of the models, the claims with their tests, the search card's sentences, the steps
    report.png     exact match and searches of each model, and the curves of the training (picture.py); not
                   written without matplotlib

All models answer the same held-out questions over the same index. A claim that one model is better than
another is checked by a permutation test on the questions that both have answered
(rag_r1/evaluation/report/comparison.py): it holds if the difference has the claimed sign and p < 0.05.

The report is made from the folders of the finished steps alone, so it can be made again at any time. Names
and questions are escaped, so that they never become markup.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rag_r1.agent.records import records_by_step
from rag_r1.evaluation.probes.suite import CARD_JSON, CARD_MD
from rag_r1.evaluation.report.compare_command import compare
from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.io.bounded_json import read_json_object
from rag_r1.io.secrets import without_secrets
from rag_r1.own.artifacts import STEP_NAMES, OwnArtifacts
from rag_r1.own.evaluation_steps import RUN, Evaluation, evaluations, step_name
from rag_r1.own.forecast import duration_text
from rag_r1.own.results.picture import draw
from rag_r1.runs.markdown import Page, cell, integer, number, p_value, with_interval
from rag_r1.runs.steps import PipelineFolder

REPORT = "report.md"
#: The figures of `rag-r1 eval` that are shown, with the headings of their columns.
COLUMNS = {"em": "EM", "f1": "F1", "queries": "searches a question", "recall": "recall of gold passages"}
#: Settings that may differ between the evaluations of a run.
_MAY_DIFFER = (
    *("model", "condition", "protocol", "budget", "failures", "retriever", "index"),
    *("engine", "machine", "versions", "commit"),  # a run may be resumed elsewhere, and after an update
)
#: A difference with a smaller p counts.
_SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Claim:
    """The claim that one model answers better than another one."""

    text: str
    #: Names of the evaluations of the two models.
    better: str
    other: str


CLAIMS = (
    Claim("the trained agent answers better than the untrained one", "trained", "untrained"),
    Claim("the trained agent answers better than one search (RAG)", "trained", "one_shot"),
    Claim("reinforcement learning adds to SFT", "trained", "fine_tuned"),
    Claim("the agent answers better than one search (RAG)", "untrained", "one_shot"),
)


def make_report(artifacts: OwnArtifacts, folder: PipelineFolder) -> dict[str, Any]:
    """Write the files of the report, and return the contents of report.json.

    All evaluations of the plan must be finished. Raises RunError if two of them cannot be compared, and
    OSError or ValueError if a file of theirs cannot be read.
    """
    out = artifacts.out
    by_name = {evaluation.name: evaluation for evaluation in evaluations(artifacts)}
    steps = [name for name in STEP_NAMES if name != "evaluation"]
    report = {
        "format": 1,
        "models": {name: _figures(evaluation, out) for name, evaluation in by_name.items()},
        "claims": [_check_claim(claim, by_name, out) for claim in CLAIMS if _applies(claim, by_name)],
        "card": _card_sentences(artifacts, list(by_name.values())),
        "curves": curves(artifacts.grpo_stage / "trajectories"),
        "steps": {step: facts for step in steps if (facts := folder.facts(step))},
        "seconds": {
            step: seconds
            for step in (*steps, *(evaluation.step for evaluation in by_name.values()))
            if (seconds := folder.seconds(step)) is not None
        },
        "plan": without_secrets(artifacts.plan.plain()),
    }
    pictures = draw(report, out / "report.png")
    write_json(out / "report.json", report, private=True)
    write_text(out / REPORT, markdown(report, pictures) + "\n", private=True)
    return report


def _figures(evaluation: Evaluation, out: Path) -> dict[str, Any]:
    """Return the figures of a model over all questions, and its exact match by source of the questions."""
    run = read_json_object(evaluation.folder(out) / "report.json")
    counts = run["counts"]["all"]
    return {
        "label": evaluation.label,
        **{name: run["figures"][name]["all"] for name in COLUMNS},
        "sources": run["figures"]["em"]["sources"],
        "questions": counts["questions"],
        "failed": counts["failed"],
    }


def _applies(claim: Claim, evaluations: Mapping[str, Evaluation]) -> bool:
    """Return whether a claim can be checked.

    Both models must have been evaluated. If there is a trained model, only claims about it are checked.
    """
    return {claim.better, claim.other} <= evaluations.keys() and (
        claim.better == "trained" or "trained" not in evaluations
    )


def _check_claim(claim: Claim, evaluations: Mapping[str, Evaluation], out: Path) -> dict[str, Any]:
    """Check a claim; returns its figures and its verdict: `held`, `not shown`, or `the opposite held`."""
    folders = [evaluations[name].folder(out) for name in (claim.other, claim.better)]
    [difference] = compare(folders, _MAY_DIFFER)["figures"]["em"]["all"]["differences"]
    verdict = "not shown"
    if difference["p"] < _SIGNIFICANCE:
        verdict = "held" if difference["value"] > 0 else "the opposite held"
    return {"claim": claim.text, "models": [claim.better, claim.other], **difference, "verdict": verdict}


def _card_sentences(artifacts: OwnArtifacts, evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the sentences of the search card; none if no evaluation made one."""
    return [
        sentence
        for evaluation in evaluations
        if evaluation.has_card
        for sentence in read_json_object(artifacts.out / evaluation.step / RUN / CARD_JSON)["sentences"]
    ]


def curves(trajectories: Path) -> dict[str, dict[int, float]]:
    """Return two curves of a training by step: the mean reward of its episodes, and EM of its validations.

    Both are empty if nothing was trained by reinforcement learning. Steps whose episodes all failed are left
    out. `trajectories` is the folder that contains the recorded episodes of each split.
    """
    return {
        "reward": _means(trajectories / "train", "score"),
        "held_out_em": _means(trajectories / "test", "em"),
    }


def _means(records: Path, term: str) -> dict[int, float]:
    """Return the mean of a reward term by step, over the records that have it, which those of failed episodes
    do not."""
    means = {}
    for step, step_records in records_by_step(records).items():
        if values := [value for record in step_records if (value := record["rewards"].get(term)) is not None]:
            means[step] = fmean(values)
    return means


def markdown(report: Mapping[str, Any], pictures: Sequence[Path] = ()) -> str:
    """Format the report as Markdown, with the files in `pictures`."""
    models = report["models"]
    questions = max(model["questions"] for model in models.values())
    page = Page("An agent for these documents").text(
        f"{integer(questions)} held-out questions, greedy, over the same index; in brackets 95 % bootstrap "
        "intervals."
    )
    page.pictures(pictures, "Exact match and searches of each model, and the curves of the training")
    page.table(["model", *COLUMNS.values(), "failed"], map(_model_row, models.values()))
    if report["claims"]:
        page.heading("Claims").text(
            "Exact match on the questions that both answered, tested by permutation; a claim holds if p < "
            f"{_SIGNIFICANCE}. This is one seed."
        ).table(["claim", "difference", "p", "verdict"], map(_claim_row, report["claims"]), "lrrl")
    if report["card"]:
        page.heading("Does it search, or does it know?").text(*report["card"])
    page.heading("Steps").bullets(step_items(report)).text(*_notes(report))
    return str(page)


def _model_row(model: Mapping[str, Any]) -> list[str]:
    """Return the cells of a model in the table of the models."""
    decimals = {"em": 3, "f1": 3, "queries": 2, "recall": 3}
    figures = [with_interval(model[name], decimals[name]) for name in COLUMNS]
    return [cell(model["label"]), *figures, integer(model["failed"])]


def _claim_row(claim: Mapping[str, Any]) -> list[str]:
    """Return the cells of a claim in the table of the claims."""
    difference = with_interval(claim, 3, signed=True)
    return [claim["claim"], difference, p_value(claim["p"]), f"**{claim['verdict']}**"]


def step_items(report: Mapping[str, Any]) -> list[str]:
    """Return a line of Markdown for each finished step, with its time and its result."""
    steps, seconds = report["steps"], report["seconds"]
    texts = {name: describe(steps[name]) for name, describe in _STEP_TEXTS.items() if name in steps}
    for name, model in report["models"].items():
        if (step := step_name(name)) in seconds:
            texts[step] = f"exact match {with_interval(model['em'])}"
    return [f"**{name}** ({duration_text(seconds[name])}): {text}" for name, text in texts.items()]


def _questions_text(facts: Mapping[str, Any]) -> str:
    """Return the result of the step `questions` in words."""
    rows = ", ".join(f"{count:,} in {split}" for split, count in facts["rows"].items())
    if "seeds" not in facts:
        return f"your own: {rows}"
    return f"{facts['kept']:,} of {facts['seeds']:,} kept: {rows}{_cost_text(facts)}"


def _cost_text(facts: Mapping[str, Any]) -> str:
    """Return the cost of a step in words; nothing if there is none."""
    return f"; cost {facts['cost']:.4g}" if facts.get("cost") else ""


#: Functions that describe the result of each step in words, from its facts.
_STEP_TEXTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "documents": lambda facts: f"{facts['passages']:,} passages of {facts['documents']:,} documents",
    "index": lambda facts: f"{facts['passages']:,} passages",
    "questions": _questions_text,
    "traces": lambda facts: f"{facts['right']:,} of {facts['judged']:,} right{_cost_text(facts)}",
    "sft_data": lambda facts: f"{facts['samples']:,} samples",
    "sft": lambda facts: f"{facts['samples']:,} samples, validation loss {number(facts['loss'])}",
    "filter": lambda facts: (
        f"{facts['kept']:,} of {facts['questions']:,} questions kept: {facts['right_at_first']:,} right at "
        f"first, {facts['right_later']:,} later, {facts['never_right']:,} never"
    ),
    "grpo": lambda facts: f"`{facts['model']}`",
}


def _notes(report: Mapping[str, Any]) -> list[str]:
    """Return the paragraphs at the end of the report.

    They say where the search card is, and that no person has read the questions, if a teacher wrote them.
    """
    notes = []
    if report["card"]:
        model = "trained" if "trained" in report["models"] else "untrained"
        notes.append(f"The whole search card: `{step_name(model)}/{RUN}/{CARD_MD}`.")
    if "seeds" in report["steps"].get("questions", {}):
        notes.append(
            "The held-out questions are the teacher's, too, from other documents than those that were "
            "trained on: no person has read them. What nobody has verified: `questions/data_card.md`."
        )
    return notes
