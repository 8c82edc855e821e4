"""Writes the data card of a run of `rag-r1 questions`, as `data_card.json` and `data_card.md`.

The card names the corpus, the models and the settings, and gives the cost. It counts how many drafts each
step refused, with the reasons, and lists what was not verified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_r1.io.atomic_files import write_json, write_text
from rag_r1.questions.drafts import REASONS, STEP_OF, Outcome
from rag_r1.questions.passages.documents import SPLITS
from rag_r1.questions.results.rows import QUESTIONS, REFUSED
from rag_r1.runs.markdown import Page, cell, integer
from rag_r1.runs.response_cache import Usage

CARD = "data_card.json"
#: What the run has not verified, as sentences of the card.
_LIMITS = (
    "No person has read these questions. An answer is right if the teacher took it from the corpus and the "
    "reader confirmed it, so errors that both models make, and errors in the corpus, are errors here, too.",
    "Other answers are looked for only in the results of a few searches: a question of several steps may "
    "have another answer by way of other passages.",
    "The closed-book check is about this reader: another model may know answers that it does not know.",
    "The passages keep their licence; the terms of both models may limit what their output is used for.",
)


def card_of(
    outcomes: Sequence[Outcome],
    rows: Mapping[str, int],
    settings: Mapping[str, Any],
    usage: Mapping[str, tuple[Usage, float]],
    stopped: str | None = None,
) -> dict[str, Any]:
    """Return the contents of data_card.json.

    `rows` maps each split to the number of its rows, and `usage` each role (teacher, reader) to the usage of
    its model and the cost. `stopped` is the reason why the run was stopped early; None if it was not: then
    the card says how many drafts are open, if any are. The counts follow from the outcomes alone, so a run
    that was interrupted and resumed gets the same counts as one that was not.
    """
    kept = Counter(outcome.seed.kind for outcome in outcomes if outcome.is_kept)
    seeds = Counter(outcome.seed.kind for outcome in outcomes)
    reasons = Counter(outcome.reason for outcome in outcomes if outcome.reason)
    by_kind: dict[str, Any] = {}
    for kind, count in seeds.items():
        refused = Counter(each.reason for each in outcomes if each.reason and each.seed.kind == kind)
        by_kind[kind] = {"seeds": count, "kept": kept[kind], "refused": dict(sorted(refused.items()))}
    n_open = sum(outcome.is_open for outcome in outcomes)
    return {
        "seeds": len(outcomes),
        "kept": kept.total(),
        "open": n_open,
        "yield": round(kept.total() / len(outcomes), 4) if outcomes else None,
        "rows": dict(rows),
        "by_kind": by_kind,
        "refused": {reason: reasons[reason] for reason in STEP_OF if reasons[reason]},
        "steps": _steps(reasons, len(outcomes) - n_open),
        "usage": {name: {**vars(used), "cost": round(cost, 6)} for name, (used, cost) in usage.items()},
        "stopped": stopped or (f"{n_open:,} drafts are open" if n_open else None),
        "settings": dict(settings),
        "limits": list(_LIMITS),
    }


def _steps(reasons: Mapping[str, int], reached: int) -> dict[str, dict[str, int]]:
    """Count the drafts that reached each step, and those that it refused.

    `reached` is the number of drafts that reached the first step.
    """
    steps = {}
    for step, names in REASONS.items():
        refused = sum(reasons.get(name, 0) for name in names)
        steps[step] = {"reached": reached, "refused": refused}
        reached -= refused
    return steps


def write_card(out: Path, card: Mapping[str, Any]) -> None:
    """Write data_card.json and data_card.md. Raises OSError."""
    write_json(out / CARD, card, ensure_ascii=False)
    write_text(out / "data_card.md", f"{page_of(card)}\n")


def page_of(card: Mapping[str, Any]) -> Page:
    """Return the card as a page of Markdown."""
    settings = card["settings"]
    page = Page("Questions from a corpus").text(
        f"{card['kept']:,} questions of {card['seeds']:,} seeds ({_percent(card['yield'])}): "
        + ", ".join(f"{count:,} in {split}" for split, count in card["rows"].items())
        + f". {QUESTIONS} lists them with their passages, {REFUSED} what was refused."
    )
    if card["open"]:
        reason = "the run was stopped, or a server did not answer"
        page.text(f"{card['open']:,} are open: {reason}. The same command goes on with them.")
    _add_counts(page, card)
    _add_models(page, card)
    hashes = (f"{cell(name)} `{digest[:16]}`" for name, digest in settings["prompts_sha256"].items())
    page.text(f"Prompts (SHA-256): {', '.join(hashes)}.")
    page.text(f"Corpus: {settings['passages']:,} passages (SHA-256 `{settings['corpus_sha256'][:16]}`).")
    return page.heading("What is not verified").bullets(card["limits"])


def _add_counts(page: Page, card: Mapping[str, Any]) -> None:
    """Add the tables that count questions by kind, and drafts by step and by reason of refusal."""
    page.heading("By kind").table(
        ("kind", "seeds", "kept", "yield"),
        [
            (cell(kind), integer(row["seeds"]), integer(row["kept"]), _percent(row["kept"] / row["seeds"]))
            for kind, row in card["by_kind"].items()
        ],
    )
    page.heading("By step").table(
        ("step", "reached", "refused"),
        [
            (cell(step), integer(row["reached"]), integer(row["refused"]))
            for step, row in card["steps"].items()
        ],
    )
    page.heading("Reasons of refusal").table(
        ("reason", "drafts", "meaning"),
        [
            (cell(reason), integer(count), cell(REASONS[STEP_OF[reason]][reason]))
            for reason, count in card["refused"].items()
        ],
        "lrl",
    )


def _add_models(page: Page, card: Mapping[str, Any]) -> None:
    """Add the table of the models, with their tokens and cost."""
    page.heading("Models").table(
        ("role", "model", "answers", "prompt tokens", "generated tokens", "cost"),
        [
            (
                role,
                cell(card["settings"][role]["model"]),
                integer(used["requests"]),
                integer(used["prompt_tokens"]),
                integer(used["completion_tokens"]),
                f"{used['cost']:.4g}",
            )
            for role, used in card["usage"].items()
        ],
        "llrrrr",
    )


def summary_lines(card: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about what was refused and kept, and about the usage of the models."""
    for name, step in card["steps"].items():
        if step["refused"]:
            yield f"{name}: {step['refused']:,} of {step['reached']:,} refused"
    counts = ", ".join(f"{card['rows'][split]:,} in {split}" for split in SPLITS)
    yield f"kept: {card['kept']:,} of {card['seeds']:,} ({counts})"
    for name, usage in card["usage"].items():
        cost = f", cost {usage['cost']:.4g}" if usage["cost"] else ""
        tokens = f"{usage['prompt_tokens']:,} prompt tokens, {usage['completion_tokens']:,} generated tokens"
        yield f"{name}: {usage['requests']:,} answers, {tokens}{cost}"


def _percent(share: float | None) -> str:
    """Format a share as a percentage; a dash if there is none."""
    return "–" if share is None else f"{share:.1%}"
