"""Writes the report of a pipeline: what each step has gained, and which claims of the paper hold.

    report.json    all figures
    report.md      a table of the models, the claims, and the result of each step
    report.png     exact match by kind of question, searches, curves of both trainings (picture.py)

RAG-R1 claims that SFT followed by reinforcement learning is better than either alone (arXiv 2507.02962,
ablations). A claim is tested on the same questions by McNemar's exact test. It holds if the difference has
the claimed sign and p < 0.05; the opposite holds if it has the other sign and p < 0.05; otherwise it is not
shown. Since a run has one seed, the test tells whether other questions would change the result, but not
whether another seed would.

All figures come from the folders of the finished steps, so the report can be made again at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rag_r1.agent.records import records_by_step
from rag_r1.demo.pipeline.evaluation import SCORES, Scores
from rag_r1.demo.pipeline.picture import draw
from rag_r1.demo.report import summarise
from rag_r1.demo.world import KINDS
from rag_r1.evaluation.report.estimates import known_mean
from rag_r1.evaluation.report.significance import mcnemar
from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.runs.markdown import Page, number, p_value
from rag_r1.runs.steps import PipelineFolder

#: The names of the models in the report, by the steps that make them.
LABELS = {"base": "base", "sft": "SFT", "grpo": "SFT, then GRPO", "grpo_without_sft": "GRPO without SFT"}
#: A difference with a smaller p-value is significant.
_SIGNIFICANCE = 0.05


class ModelClaim(NamedTuple):
    """A claim about two models, which are named by the steps that make them."""

    text: str
    #: The model that is claimed to be better.
    better: str
    other: str


CLAIMS = (
    ModelClaim("SFT is better than the base", "sft", "base"),
    ModelClaim("SFT, then GRPO is better than SFT alone", "grpo", "sft"),
    ModelClaim("SFT, then GRPO is better than GRPO without SFT", "grpo", "grpo_without_sft"),
    ModelClaim("GRPO without SFT is better than the base", "grpo_without_sft", "base"),
)


def make_report(run: PipelineFolder, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write the three files into the folder of the run, and return the contents of report.json.

    `settings` are the protocol and the seed of the run. Raises OSError or ValueError if the scores of the
    evaluation cannot be read, and RunError if the facts of a step cannot.
    """
    scores = json.loads((run.out / "evaluation" / SCORES).read_text(encoding="utf-8"))
    trained_models = [name for name in ("grpo", "grpo_without_sft") if name in scores]
    steps = ("base", "traces", "sft_data", "sft", "filter", *trained_models)
    report = {
        "settings": dict(settings),
        "models": {name: figures(rows) for name, rows in scores.items()},
        "claims": [check_claim(each, scores) for each in CLAIMS if {each.better, each.other} <= {*scores}],
        "curves": {name: curves(run.out / name / "stage1" / "trajectories") for name in trained_models},
        "steps": {name: run.facts(name) for name in steps},
        "seconds": {name: run.seconds(name) for name in ("world", *steps, "evaluation")},
    }
    write_json(run.out / "report.json", report, private=True)
    write_text(run.out / "report.md", markdown(report) + "\n", private=True)
    draw(report, LABELS, run.out / "report.png")
    return report


def figures(scores: Scores) -> dict[str, Any]:
    """Average the scores of a model over the questions: exact match by kind and over all, searches, format.

    `counts` in the result has the number of questions of each kind.
    """
    kinds = sorted({score["kind"] for score in scores}, key=KINDS.index)
    by_kind = {kind: [score["em"] for score in scores if score["kind"] == kind] for kind in kinds}
    return {
        "questions": len(scores),
        "counts": {kind: len(values) for kind, values in by_kind.items()},
        **{f"em_{kind}": known_mean(values) for kind, values in by_kind.items()},
        **{name: known_mean([score[name] for score in scores]) for name in ("em", "searches", "format")},
    }


def check_claim(claim: ModelClaim, scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Test a claim; returns its figures and its verdict: `holds`, `not shown` or `the opposite holds`."""
    first, second = ([score["em"] for score in scores[name]] for name in (claim.better, claim.other))
    pairs = list(zip(first, second, strict=True))
    n_first_alone = sum(a > b for a, b in pairs)
    n_second_alone = sum(a < b for a, b in pairs)
    p = mcnemar(n_first_alone, n_second_alone)
    difference = known_mean(first) - known_mean(second)
    direction = "holds" if difference > 0 else "the opposite holds"
    verdict = direction if p < _SIGNIFICANCE else "not shown"
    return {
        "claim": claim.text,
        "models": [claim.better, claim.other],
        "em": [known_mean(first), known_mean(second)],
        "difference": difference,
        "only_first": n_first_alone,
        "only_second": n_second_alone,
        "p": p,
        "verdict": verdict,
    }


def curves(trajectories: Path) -> dict[str, dict[int, float]]:
    """Return the curves of a training by step.

    `reward` is the mean reward of the sampled trajectories; `held_out_em` is the exact match in the
    training's own validations on the held-out questions (greedy, on vLLM).
    """
    training, held_out = (records_by_step(trajectories / split) for split in ("train", "val"))
    rewards = {step: [record["rewards"]["score"] for record in records] for step, records in training.items()}
    return {
        "reward": {step: known_mean(values) for step, values in rewards.items()},
        "held_out_em": {step: summarise(records).em for step, records in held_out.items()},
    }


def markdown(report: Mapping[str, Any]) -> str:
    """Format the report as Markdown: the models, the claims, and the steps."""
    models, settings = report["models"], report["settings"]
    questions = next(iter(models.values()))["questions"]
    kinds = [name for name in next(iter(models.values())) if name.startswith("em_")]
    kind_labels = [name.removeprefix("em_").replace("_", "-") for name in kinds]
    header = ["model", "EM", *kind_labels, "searches", "format"]
    rows = [
        [LABELS[name], *(number(model[key], 2) for key in ("em", *kinds, "searches", "format"))]
        for name, model in models.items()
    ]
    page = Page(f"RAG-R1 in miniature, {settings['protocol']}, seed {settings['seed']}")
    page.text(
        f"{questions} held-out questions, greedy: exact match over all and by question kind, queries for "
        "each question, and the share of episodes that keep to the format and answer."
    ).table(header, rows)
    page.heading("Claims").text(
        f"Exact match on the same questions; McNemar's exact test. A claim holds if p < {_SIGNIFICANCE}. "
        "This is one seed."
    ).table(["claim", "EM", "difference", "right in one only", "p", "verdict"], _claim_rows(report))
    return str(page.heading("Steps").bullets(_step_items(report)))


def _claim_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return a row of the table for each claim."""
    return [
        [
            entry["claim"],
            " / ".join(number(value, 2) for value in entry["em"]),
            number(entry["difference"], 2, signed=True),
            f"{entry['only_first']} / {entry['only_second']}",
            p_value(entry["p"]),
            f"**{entry['verdict']}**",
        ]
        for entry in report["claims"]
    ]


def _step_items(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each step that has facts, with its result and, if it is known, its time."""
    names = ("base", "traces", "sft_data", "sft", "filter")
    base, traces, data, sft, chosen = (report["steps"].get(name, {}) for name in names)
    texts = {
        "base": (
            f"pretrained for {base['steps']} steps from random weights, without a search"
            if base.get("steps")
            else f"given ({base.get('base')})"
        ),
        "traces": f"{traces.get('right')} of {traces.get('judged')} right",
        "sft_data": ", ".join(
            f"{split['samples']} samples in {name}" for name, split in data.get("splits", {}).items()
        ),
        "sft": f"{sft.get('epochs')} epochs of {sft.get('samples')} samples",
        "filter": (
            f"{chosen.get('kept')} of {chosen.get('questions')} questions kept: "
            f"{chosen.get('right_at_first')} right at first, "
            f"{chosen.get('right_later')} later, {chosen.get('never_right')} never"
        ),
    }
    for name, curve in report["curves"].items():
        points = [f"{number(em, 2)} (step {step})" for step, em in curve["held_out_em"].items()]
        texts[name] = "held-out exact match in its own validations: " + (", ".join(points) or "none")
    return [f"**{name}**{_minutes(report['seconds'].get(name))}: {text}" for name, text in texts.items()]


def _minutes(seconds: float | None) -> str:
    """Format the time of a step in minutes; nothing if it is not known."""
    return "" if seconds is None else f" ({seconds / 60:.1f} min)"
