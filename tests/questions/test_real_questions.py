"""The rules leave questions alone that people have written about real passages."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from rag_r1.questions.rules import dangling_reference, name_not_in_passages, wrong_form
from tests.questions.drafted import draft

DATA = Path(os.environ.get("RAG_R1_DATA") or Path(__file__).parents[3] / "shared" / "data")
CORPUS, QUESTIONS = DATA / "corpus" / "hotpotqa_corpus.jsonl.gz", DATA / "qa" / "hotpotqa.jsonl"


@pytest.mark.skipif(
    not (CORPUS.is_file() and QUESTIONS.is_file()),
    reason="left out: the real HotpotQA corpus is not there (RAG_R1_DATA names its folder)",
)
def test_few_questions_of_people_are_refused_for_their_words():
    with gzip.open(CORPUS, "rt", encoding="utf-8") as lines:
        texts = {row["id"]: row["contents"] for row in map(json.loads, lines)}
    rows = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    drafts = [
        draft(f"{row['question'].rstrip('?. ')}?", row["golden_answers"][0], "bridge", *own)
        for row in rows
        if row["golden_answers"][0] not in ("yes", "no")
        and (own := [texts[name] for name in row["supporting_ids"] if name in texts])
    ]
    rules = (wrong_form, dangling_reference, name_not_in_passages)
    refused = Counter(rule.__name__ for one in drafts for rule in rules if rule(one))
    assert len(drafts) > 400
    assert refused["wrong_form"] <= 0.01 * len(drafts)
    assert refused["dangling_reference"] <= 0.05 * len(drafts)
    # 10 of the 14 misspell a name or a year: Nambia, Sydeney, 1194.
    assert refused["name_not_in_passages"] <= 0.04 * len(drafts)
