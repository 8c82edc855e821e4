"""The questions from which the real small model's traces are made."""

from __future__ import annotations

import json

from examples.real_small.traces import read_questions

QUESTION = {"id": "one_hop-1", "kind": "one_hop", "question": "Where?", "golden_answers": "Ulm"}


def test_a_text_in_place_of_a_list_is_one_text(tmp_path):
    evidence = {"supporting_ids": "p1", "supporting_titles": ["Ann Lee"]}
    (path := tmp_path / "q.jsonl").write_text(json.dumps(QUESTION | evidence))
    [question] = read_questions(path)
    assert (question.golds, question.ids, question.titles) == (("Ulm",), ("p1",), ("Ann Lee",))
