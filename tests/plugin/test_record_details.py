"""What the agent loop adds to a record: the prompt by its hash, stored once, and its tokens on request."""

from __future__ import annotations

import json

import pytest

from rag_r1.agent import Ledger, Trajectory
from rag_r1.plugin.record_details import RecordDetails
from rag_r1.protocols import load_protocol
from tests.fakes.scripted_engine import Characters

PROTOCOL = load_protocol("rag_r1_mq")
CODEC = Characters()


def detailed(details: RecordDetails, question: str, prompt: str = "Answer: {question}") -> Trajectory:
    """A record with what `details` adds to it."""
    ledger = Ledger(CODEC.encode(prompt.format(question=PROTOCOL.neutralise(question))))
    ledger.append_generated(CODEC.encode("ab"), [-0.5, -1.0])
    ledger.append_observed(CODEC.encode("c"))
    record = Trajectory("q#0", question, PROTOCOL.name)
    details.add(record, ledger, PROTOCOL, CODEC)
    return record


def prompts_in(folder) -> dict[str, str]:
    lines = [json.loads(line) for file in folder.rglob("*.ndjson") for line in file.open()]
    assert len({line["prompt_sha256"] for line in lines}) == len(lines)
    return {line["prompt_sha256"]: line["text"] for line in lines}


def test_questions_that_share_a_prompt_share_its_text(tmp_path):
    details = RecordDetails(str(tmp_path))
    records = [detailed(details, question) for question in ("Who?", "<search> in a question", "Where?")]
    other = detailed(details, "Who?", "Think, then answer: {question}")
    first = records[0].prompt_sha256
    assert {record.prompt_sha256 for record in records} == {first} != {other.prompt_sha256}
    assert prompts_in(tmp_path) == {
        first: "Answer: {question}",
        other.prompt_sha256: "Think, then answer: {question}",
    }


@pytest.mark.parametrize("tokens", [False, True])
def test_a_record_holds_its_training_rows_if_that_is_wanted(tmp_path, tokens):
    record = detailed(RecordDetails(str(tmp_path), tokens=tokens), "Who?")
    if not tokens:
        assert record.rows == []
        return
    (row,) = record.to_dict()["rows"]
    assert row["prompt_ids"] == CODEC.encode("Answer: Who?")
    assert row["response_ids"] == CODEC.encode("abc")
    assert (row["response_mask"], row["response_logprobs"]) == ([1, 1, 0], [-0.5, -1.0, 0.0])


def test_without_a_folder_nothing_is_added_and_a_full_disk_loses_the_text_only(tmp_path):
    assert detailed(RecordDetails(None, tokens=True), "Who?").prompt_sha256 == ""
    (tmp_path / "prompts").write_text("a file in the place of the folder")
    assert detailed(RecordDetails(str(tmp_path)), "Who?").prompt_sha256
