"""Questions to veRL's parquet: duplicates out, prompts rendered by the protocol, rows and counts written.

Two questions are the same if their words are (letters and digits, in any case). Of duplicates the first
stays. A question that stands in both splits is removed from train, never from test: test keeps its published
rows and holds nothing that is trained on.

Every row has an id of its own: `source/split/id`, with the source's own id or, where there is none (or the
same twice), a hash of the question's words. So a question has the same id under every protocol, and sets of
several sources can be merged.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_process.questions import DataError, Question, Source
from rag_r1.protocols import Protocol

AGENT_NAME = "search_agent"
ABILITY = "fact-reasoning"

#: One schema for every file, so that veRL can join files of several sources.
SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        (
            "reward_model",
            pa.struct(
                [("style", pa.string()), ("ground_truth", pa.struct([("target", pa.list_(pa.string()))]))]
            ),
        ),
        (
            "extra_info",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("question", pa.string()),
                    ("index", pa.int64()),
                    ("split", pa.string()),
                    ("protocol", pa.string()),
                ]
            ),
        ),
        ("agent_name", pa.string()),
    ]
)


@dataclass(frozen=True)
class Split:
    """The questions of one split that are kept, and how many rows were read and left out, by reason."""

    name: str
    source: Source
    questions: list[Question]
    duplicates: int
    overlap: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Numbers that add up: read = malformed + duplicates + overlap + written."""
        return {
            "read": self.source.n_read,
            "malformed": self.source.n_malformed,
            "duplicates": self.duplicates,
            "overlap_with_test": self.overlap,
            "written": len(self.questions),
        }


def question_key(question: str) -> str:
    """What makes two questions the same: their words in lower case (for a text without words, the text)."""
    return " ".join(re.findall(r"\w+", question.casefold())) or question.casefold()


def make_splits(train: Source | None, test: Source | None) -> list[Split]:
    """The splits that were given, without duplicates and without overlap."""
    splits, in_test = [], set()
    if test:
        questions = _unique(test.questions)
        in_test = {question_key(q.question) for q in questions}
        splits.append(Split("test", test, questions, len(test.questions) - len(questions)))
    if train:
        questions = _unique(train.questions)
        kept = [q for q in questions if question_key(q.question) not in in_test]
        if not kept:
            raise DataError(
                f"every question of {train.name} also stands in the validation set: nothing to train on"
            )
        duplicates = len(train.questions) - len(questions)
        splits.insert(0, Split("train", train, kept, duplicates, len(questions) - len(kept)))
    return splits


def _unique(questions: list[Question]) -> list[Question]:
    first: dict[str, Question] = {}
    for question in questions:
        first.setdefault(question_key(question.question), question)
    return list(first.values())


def make_rows(
    questions: list[Question], protocol: Protocol, source_name: str, split: str
) -> list[dict[str, Any]]:
    """veRL rows; `index` counts from 0 within the file."""
    own_ids = Counter(question.id for question in questions)
    return [
        {
            "data_source": source_name,
            "prompt": protocol.messages(item.question),
            "ability": ABILITY,
            "reward_model": {"style": "rule", "ground_truth": {"target": list(item.golds)}},
            "extra_info": {
                "id": f"{source_name}/{split}/{_own_id(item, own_ids)}",
                "question": item.question,
                "index": index,
                "split": split,
                "protocol": protocol.name,
            },
            "agent_name": AGENT_NAME,
        }
        for index, item in enumerate(questions)
    ]


def _own_id(item: Question, own_ids: Counter) -> str:
    if item.id is not None and own_ids[item.id] == 1:
        return item.id
    return "q-" + hashlib.sha256(question_key(item.question).encode()).hexdigest()[:16]


def write_splits(
    splits: list[Split],
    protocol: Protocol,
    source_name: str,
    folder: Path,
    more: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `<split>.parquet` and `data_summary.json`, which also holds `more`; returns the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {
        "source_name": source_name,
        "protocol": protocol.name,
        **(more or {}),
        "splits": {},
    }
    for split in splits:
        rows = make_rows(split.questions, protocol, source_name, split.name)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / f"{split.name}.parquet")
        summary["splits"][split.name] = {
            "source": split.source.name,
            **split.counts,
            "first_malformed": split.source.malformed,
        }
    text = json.dumps(summary, indent=2, ensure_ascii=False)
    (folder / "data_summary.json").write_text(text + "\n", encoding="utf-8")
    return summary
