"""Writes the report of a run: is the trained agent better than what it began as, and than plain RAG?

    report.json    all figures, and the plan
    report.md      a table of the models, the claims with their tests, the search card's sentences, the steps
    report.png     exact match and searches of each model, and the curves of the training (picture.py)

All models answer the same held-out questions over the same index. A claim is tested by permutation on the
questions that both have answered (rag_r1/evaluation/report/comparison.py): it holds if the difference has the
claimed sign and p < 0.05. The report is made from the finished steps' folders alone, so it can be made again
at any time. What is in them is data: names and questions never become markup.
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
from rag_r1.own.artifacts import OwnArtifacts
from rag_r1.own.evaluation_steps import RUN, Evaluation, evaluations
from rag_r1.own.forecast import minutes
from rag_r1.own.picture import draw
from rag_r1.runs.markdown import Page, cell, integer, number, p_value, with_interval
from rag_r1.runs.steps import PipelineFolder

REPORT = "report.md"
#: Names of figures in the report of `rag-r1 eval`, and their columns.
COLUMNS = {"em": "EM", "f1": "F1", "queries": "searches a question", "recall": "recall of gold passages"}
#: Settings that may differ between the evaluations of a run.
_MAY_DIFFER = (
    *("model", "condition", "protocol", "budget", "failures", "retriever", "index"),
    *("engine", "machine", "versions", "commit"),  # a run may go on elsewhere, and after an update
)
_SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Claim:
    """That the model of one evaluation answers better than that of another one."""

    text: str
    better: str
    other: str


CLAIMS = (
    Claim("the trained agent answers better than the untrained one", "trained", "untrained"),
    Claim("the trained agent answers better than one search (RAG)", "trained", "one_shot"),
    Claim("reinforcement learning adds to SFT", "trained", "fine_tuned"),
    Claim("the agent answers better than one search (RAG)", "untrained", "one_shot"),
)


def make_report(artifacts: OwnArtifacts, folder: PipelineFolder) -> dict[str, Any]:
    """Write the three files, and return the content of report.json."""
    out = artifacts.out
    by_name = {evaluation.name: evaluation for evaluation in evaluations(artifacts)}
    runs = {name: read_json_object(entry.folder(out) / "report.json") for name, entry in by_name.items()}
    names = ("documents", "index", "questions", "traces", "sft_data", "sft", "filter", "grpo")
    report = {
        "format": 1,
        "models": {name: _figures(by_name[name].label, run) for name, run in runs.items()},
        "claims": [_check_claim(claim, by_name, out) for claim in CLAIMS if _is_made(claim, by_name)],
        "card": _card_sentences(artifacts, list(by_name.values())),
        "curves": curves(artifacts.grpo_stage / "trajectories"),
        "steps": {name: facts for name in names if (facts := folder.facts(name))},
        "seconds": {
            name: seconds
            for name in (*names, *(evaluation.step for evaluation in by_name.values()))
            if (seconds := folder.seconds(name)) is not None
        },
        "plan": without_secrets(artifacts.plan.plain()),
    }
    pictures = draw(report, out / "report.png")
    write_json(out / "report.json", report, private=True)
    write_text(out / REPORT, markdown(report, pictures) + "\n", private=True)
    return report


def _figures(label: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a model over all questions, and its EM by source of the questions."""
    totals = {name: run["figures"][name]["all"] for name in COLUMNS}
    counts = run["counts"]["all"]
    return {
        "label": label,
        **totals,
        "sources": run["figures"]["em"]["sources"],
        "questions": counts["questions"],
        "failed": counts["failed"],
    }


def _is_made(claim: Claim, evaluations: Mapping[str, Evaluation]) -> bool:
    """Whether both models are there; without a training the agent itself is compared."""
    return {claim.better, claim.other} <= evaluations.keys() and (
        claim.better == "trained" or "trained" not in evaluations
    )


def _check_claim(claim: Claim, evaluations: Mapping[str, Evaluation], out: Path) -> dict[str, Any]:
    """A claim with its figures and its verdict: `held`, `not shown`, or `the opposite held`."""
    folders = [evaluations[name].folder(out) for name in (claim.other, claim.better)]
    [difference] = compare(folders, _MAY_DIFFER)["figures"]["em"]["all"]["differences"]
    verdict = "not shown"
    if difference["p"] < _SIGNIFICANCE:
        verdict = "held" if difference["value"] > 0 else "the opposite held"
    return {"claim": claim.text, "models": [claim.better, claim.other], **difference, "verdict": verdict}


def _card_sentences(artifacts: OwnArtifacts, played: Sequence[Evaluation]) -> list[str]:
    """The sentences of the search card, if a model was played with one."""
    return [
        sentence
        for evaluation in played
        if evaluation.has_card
        for sentence in read_json_object(artifacts.out / evaluation.step / RUN / CARD_JSON)["sentences"]
    ]


def curves(trajectories: Path) -> dict[str, dict[int, float]]:
    """Two curves by step of a training: the mean reward of its sampled episodes, and EM of its validations.
    `trajectories`: the folder with those of each split."""
    training, held_out = (records_by_step(trajectories / split) for split in ("train", "test"))
    return {
        "reward": {step: _mean(records, "score") for step, records in training.items()},
        "held_out_em": {step: _mean(records, "em") for step, records in held_out.items()},
    }


def _mean(records: Sequence[Mapping[str, Any]], term: str) -> float:
    """The mean of a term over the records that have it; a failed episode has none."""
    values = [value for record in records if (value := record["rewards"].get(term)) is not None]
    return fmean(values) if values else float("nan")


def markdown(report: Mapping[str, Any], pictures: Sequence[Path] = ()) -> str:
    """The report as Markdown. `pictures`: the files that it shows."""
    models = report["models"]
    questions = max(model["questions"] for model in models.values())
    page = Page("An agent for these documents").text(
        f"{integer(questions)} held-out questions, greedy, over the same index; in brackets 95 % bootstrap "
        "intervals."
    )
    page.pictures(pictures, "Exact match and searches of each model, and the curves of the training")
    page.table(["model", *COLUMNS.values(), "failed"], map(_row, models.values()))
    if report["claims"]:
        page.heading("Claims").text(
            "Exact match on the questions that both answered, tested by permutation; a claim holds if p < "
            "0.05. This is one seed."
        ).table(["claim", "difference", "p", "verdict"], map(_claim_row, report["claims"]), "lrrl")
    if report["card"]:
        page.heading("Does it search, or does it know?").text(*report["card"])
    page.heading("Steps").bullets(step_items(report)).text(*_notes(report))
    return str(page)


def _row(model: Mapping[str, Any]) -> list[str]:
    decimals = {"em": 3, "f1": 3, "queries": 2, "recall": 3}
    figures = [with_interval(model[name], decimals[name]) for name in COLUMNS]
    return [cell(model["label"]), *figures, integer(model["failed"])]


def _claim_row(claim: Mapping[str, Any]) -> list[str]:
    difference = with_interval(claim, 3, signed=True)
    return [claim["claim"], difference, p_value(claim["p"]), f"**{claim['verdict']}**"]


def step_items(report: Mapping[str, Any]) -> list[str]:
    """A line of Markdown for each step that is done: its time and its result."""
    steps = report["steps"]
    texts = {name: describe(steps[name]) for name, describe in _STEP_TEXTS.items() if name in steps}
    for name in report["seconds"]:
        if name.startswith("evaluation/"):
            model = report["models"][name.partition("/")[2]]
            texts[name] = f"exact match {with_interval(model['em'])}"
    seconds = report["seconds"]
    return [f"**{name}** ({minutes(seconds[name])}): {text}" for name, text in texts.items()]


def _questions_text(facts: Mapping[str, Any]) -> str:
    rows = ", ".join(f"{count:,} in {split}" for split, count in facts["rows"].items())
    if "seeds" not in facts:
        return f"your own: {rows}"
    return f"{facts['kept']:,} of {facts['seeds']:,} kept: {rows}{_cost_text(facts)}"


def _cost_text(facts: Mapping[str, Any]) -> str:
    return f"; cost {facts['cost']:.4g}" if facts.get("cost") else ""


#: Name of a step -> its result in words, from its facts.
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
    """Paragraphs that end the report: where the card is, and who has read the questions."""
    notes = []
    if report["card"]:
        model = "trained" if "trained" in report["models"] else "untrained"
        notes.append(f"The whole search card: `evaluation/{model}/{RUN}/{CARD_MD}`.")
    if "seeds" in report["steps"].get("questions", {}):
        notes.append(
            "The held-out questions are the teacher's, too, from other documents than those that were "
            "trained on: no person has read them. What nobody has verified: `questions/data_card.md`."
        )
    return notes
