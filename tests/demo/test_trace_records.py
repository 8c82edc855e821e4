"""The demo's traces as records: the same samples, token by token, as the warm start learns from."""

from __future__ import annotations

import pytest

from rag_r1.agent.records import read_records, trajectory_of
from rag_r1.data.sft_tokens import SftTokens
from rag_r1.demo.policy import encode_trace, load_policy, policy_path
from rag_r1.demo.trace_records import BATCH, played_trajectory, warm_traces, write_records
from rag_r1.demo.traces.writer import sample_kinds
from rag_r1.demo.world import demo_protocol
from rag_r1.sft.segment import kinds_of, samples_of, trace_of


@pytest.mark.parametrize("name", ["rag_r1_sq", "rag_r1_mq"])
def test_a_record_has_the_tokens_and_the_mask_of_its_trace(name):
    _, tokenizer = load_policy(policy_path(name))
    protocol = demo_protocol(name)
    tokens = SftTokens(tokenizer, protocol)
    (traces,) = warm_traces(protocol, "mixed", 1, seed=3)
    for trace in traces:
        trajectory = played_trajectory(trace, protocol, "1")
        (row,) = samples_of(trace_of(trajectory, tokens.protocol), tokens.protocol, "whole")
        ids, mask = encode_trace(tokenizer, protocol, protocol.messages(trace.question.text), trace.segments)
        assert (tokens(row).ids, tokens(row).mask) == (ids, mask)
        assert kinds_of(row) == sample_kinds(trace.segments)


def test_records_are_written_with_their_golds_and_are_the_same_again(tmp_path):
    protocol = demo_protocol("rag_r1_mq")
    for name in "ab":
        assert write_records(tmp_path / name / "traces.jsonl", protocol, "gold", 2, seed=0) == 2 * BATCH
    assert (tmp_path / "a" / "traces.jsonl").read_bytes() == (tmp_path / "b" / "traces.jsonl").read_bytes()
    records = list(read_records(tmp_path / "a"))
    assert len({record["id"] for record in records}) == 2 * BATCH
    # The gold strategies find every fact; a comparison's answer is one of two names.
    assert all(trajectory_of(record).answer == record["golds"][0] for record in records)
