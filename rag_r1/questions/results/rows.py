"""Writes the rows of a run: the questions that are kept, and the drafts that were refused.

train.parquet, test.parquet   the rows (rag_r1/data/rows.py) with the ids of the passages that each
                              question needs; a file without rows is not written
questions.jsonl               the same with kind and split, for people and for `rag-r1 eval report`
refused.jsonl                 each refused draft with the step, the reason and the reader's answers
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rag_r1.data.files.qa_parquet import make_rows
from rag_r1.data.files.questions import Question
from rag_r1.data.rows import RowWriter
from rag_r1.io.atomic_files import write_json_lines
from rag_r1.protocols import Protocol
from rag_r1.questions.drafts import STEP_OF, Draft, Outcome
from rag_r1.questions.passages.documents import SPLITS
from rag_r1.rollouts.requests import seeded_fraction

QUESTIONS = "questions.jsonl"
REFUSED = "refused.jsonl"


def write_files(
    out: Path, outcomes: Sequence[Outcome], protocol: Protocol, source_name: str, seed: int
) -> dict[str, int]:
    """Write the files of a run over those of an earlier invocation. Returns the number of rows of each split.
    `source_name` is the `data_source` of the rows, and `seed` decides their order."""
    kept_drafts = [outcome.draft for outcome in outcomes if outcome.is_kept]
    kept_drafts.sort(key=lambda draft: seeded_fraction(seed, "order", draft.id))  # mixes the kinds
    counts = {}
    for split in SPLITS:
        drafts = [draft for draft in kept_drafts if draft.seed.split == split]
        counts[split] = len(drafts)
        path = out / f"{split}.parquet"
        if not drafts:
            path.unlink(missing_ok=True)
            continue
        with RowWriter(path) as writer:
            for row in make_rows(list(map(_question_of, drafts)), protocol, source_name, split):
                writer.add(row)
    write_json_lines(out / QUESTIONS, map(_draft_fields, kept_drafts), private=True)
    write_json_lines(out / REFUSED, _refused_lines(outcomes), private=True)
    return counts


def _question_of(draft: Draft) -> Question:
    """Convert a draft to a question with the metadata of its row."""
    metadata = {"question_type": draft.kind, "hops": len(draft.passages), **_supporting_fields(draft)}
    return Question(draft.question, draft.golds, draft.id, metadata=metadata)


def _draft_fields(draft: Draft) -> dict[str, Any]:
    """Return the fields of a draft in questions.jsonl and refused.jsonl."""
    return {
        "id": draft.id,
        "question": draft.question,
        "golden_answers": list(draft.golds),
        **_supporting_fields(draft),
        "kind": draft.kind,
        "obscure": draft.seed.obscure,
        "split": draft.seed.split,
    }


def _supporting_fields(draft: Draft) -> dict[str, list[str]]:
    """Return the fields that name the passages which the question needs."""
    return {
        "supporting_ids": [passage.id for passage in draft.passages],
        "supporting_titles": [passage.title for passage in draft.passages if passage.title],
    }


def _refused_lines(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """Yield the lines of refused.jsonl."""
    for outcome in outcomes:
        if outcome.reason is not None:
            seed = outcome.seed
            seed_fields = {"id": seed.id, "kind": seed.kind, "split": seed.split}
            passages = [passage.id for passage in seed.passages]
            refusal = {"step": STEP_OF[outcome.reason], "reason": outcome.reason, "detail": outcome.detail}
            draft_fields = {} if outcome.draft is None else _draft_fields(outcome.draft)
            yield {**seed_fields, "passages": passages, **refusal, **draft_fields}
