"""A trajectory becomes samples: which kinds, with which tokens, and which trajectories do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from rag_r1.data.sft_rows import Piece, SftRow
from rag_r1.data.sft_tokens import SftTokens
from rag_r1.io.errors import DataError
from rag_r1.protocols import Document, load_protocol
from rag_r1.sft.segment import (
    KINDS,
    REASONS,
    WHOLE,
    UnusableSampleError,
    check_right,
    check_targets,
    kinds_of,
    samples_of,
    trace_of,
)
from tests.evaluation.made_traces import ANSWER, SEARCH, TOWN, episodes, played, tokenizer

MQ = SftTokens(tokenizer(), load_protocol("rag_r1_mq"))
LONG = Document("2", '"Long"\n' + " ".join(f"word{number}" for number in range(20)))


def cut(lines, layout="cut", **options):
    record, _ = played(lines, **options)
    return samples_of(trace_of(record, MQ.protocol), MQ.protocol, layout)


def refused(record) -> str:
    with pytest.raises(UnusableSampleError) as raised:
        trace_of(record, MQ.protocol)
    assert raised.value.reason in REASONS
    return raised.value.reason


def test_a_trace_with_two_searches_gives_three_samples():
    rows = cut([SEARCH, SEARCH, ANSWER])
    assert [row.kind for row in rows] == [KINDS[1], KINDS[2], KINDS[3]]
    assert [row.targets for row in rows] == [[SEARCH], [SEARCH], [ANSWER]]
    assert [[piece.generated for piece in row.pieces] for row in rows] == [
        [True], [True, False, True], [True, False, True, False, True],
    ]  # fmt: skip
    assert len({row.id for row in rows}) == 3


def test_an_answer_at_once_is_the_first_kind():
    (row,) = cut([ANSWER])
    assert (row.kind, row.targets) == (KINDS[0], [ANSWER])


def test_a_whole_trace_is_one_sample_with_the_same_targets():
    (row,) = cut([SEARCH, SEARCH, ANSWER], "whole")
    assert row.kind == WHOLE and row.targets == [SEARCH, SEARCH, ANSWER]
    assert kinds_of(row) == [KINDS[1], KINDS[2], KINDS[3]]


def test_text_after_the_closing_tag_is_neither_target_nor_context():
    rows = cut([f"{SEARCH} and then </think>", ANSWER])
    assert rows[0].targets == [SEARCH] and rows[1].pieces[0].text == SEARCH


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(episodes())
def test_the_tokens_and_the_mask_are_those_of_the_rollout(episode):
    """The whole trace has exactly the tokens that the engine saw, and the policy's tokens are trained."""
    record, ledger = episode
    tokens = SftTokens(tokenizer(), load_protocol(record.protocol))
    (row,) = samples_of(trace_of(record, tokens.protocol), tokens.protocol, "whole")
    rollout, sample = ledger.row(), tokens(row)
    assert sample.ids == rollout.prompt_ids + rollout.response_ids
    assert sample.mask == [0] * len(rollout.prompt_ids) + rollout.response_mask


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(episodes())
def test_each_sample_is_a_beginning_of_the_rollout_that_ends_with_its_target(episode):
    record, ledger = episode
    tokens = SftTokens(tokenizer(), load_protocol(record.protocol))
    rows = samples_of(trace_of(record, tokens.protocol), tokens.protocol)
    whole = ledger.row().prompt_ids + ledger.row().response_ids
    trained = []
    for row in rows:
        sample = tokens(row)
        assert sample.ids == whole[: len(sample.ids)]
        start = sample.mask.index(1)
        assert sample.mask == [0] * start + [1] * (len(sample.ids) - start)
        trained += range(start, len(sample.ids))
    assert trained == [
        len(ledger.row().prompt_ids) + i for i, bit in enumerate(ledger.row().response_mask) if bit
    ]


def test_a_protocol_whose_prompt_is_plain_text_and_opens_the_thought():
    lines = [" I need.<|begin_of_query|> Ulm <|end_of_query|>", " Now. </think>\n\n<answer> Danube </answer>"]
    record, ledger = played(lines, [TOWN, LONG], protocol="r1_searcher")
    tokens = SftTokens(tokenizer(), load_protocol("r1_searcher"))
    (row,) = samples_of(trace_of(record, tokens.protocol), tokens.protocol, "whole")
    rollout = ledger.row()
    assert tokens(row).ids == rollout.prompt_ids + rollout.response_ids and row.targets == lines
    prompt = tokenizer().encode(tokens.prompt_text(row), add_special_tokens=False)
    assert prompt == rollout.prompt_ids


def test_nothing_is_trained_after_the_closing_tag():
    (row,) = cut([ANSWER])
    text = tokenizer().decode(MQ(row).ids)
    assert text.endswith("</answer>")


def test_what_ends_badly_is_left_out_with_its_reason():
    record, _ = played([SEARCH, ANSWER])
    assert refused(replace(record, protocol="rag_r1_sq")) == "other_protocol"
    assert refused(replace(record, status="turn_limit", answer=None)) == "unanswered"
    assert refused(replace(record, turns=[])) == "unreadable"
    assert refused(replace(record, question="half \ud800")) == "control_text"
    assert refused(replace(record, id="half \ud800")) == "control_text", "no parquet file can hold it"
    assert refused(played([SEARCH, "no action", ANSWER])[0]) == "other_action"


@pytest.mark.parametrize("text", ["<information> a", "a </information>", "<|im_start|>user", "<tool_call>"])
def test_a_turn_with_what_only_the_environment_writes_is_left_out(text):
    record, _ = played([SEARCH, ANSWER])
    record.turns[1].text = f"<think> {text} </think>\n<answer> Danube </answer>"
    assert refused(record) == "control_text"


def test_a_search_that_failed_is_left_out():
    record, _ = played([SEARCH, ANSWER])
    record.add_failure("retriever", "connection refused")
    assert refused(record) == "failure"
    record, _ = played([SEARCH, ANSWER])
    record.turns[0].calls[0].status = "refused"
    assert refused(record) == "failure"
    record.turns[0].calls[0].status, record.turns[0].calls[0].documents = "ok", None
    assert refused(record) == "failure"


def test_a_search_that_found_nothing_is_used():
    rows = cut([SEARCH, ANSWER], documents=())
    assert len(rows) == 2 and "<information>" in rows[1].pieces[1].text


def test_turns_that_say_other_than_the_record_are_left_out():
    record, _ = played([SEARCH, ANSWER])
    record.turns[0].calls[0].arguments = {"query": "something else"}
    assert refused(record) == "unreadable"
    record, _ = played([SEARCH, ANSWER])
    record.turns[1].row = 1
    assert refused(record) == "rewritten"
    assert refused(replace(played([ANSWER])[0], answer="Rhine")) == "unreadable"
    record, _ = played([SEARCH, ANSWER])
    record.turns[0].text, record.turns[0].calls = ANSWER, []
    assert refused(record) == "unreadable", "an answer in place of a search"


@pytest.mark.parametrize(
    ("golds", "metric", "reason"),
    [(["Danube"], "em", None), (["Rhine"], "em", "wrong"), ([], "em", "no_golds"),
     (["the Danube"], "cover_em", None), (["Danube river"], "cover_em", "wrong")],
)  # fmt: skip
def test_only_right_answers_are_kept(golds, metric, reason):
    record, _ = played([ANSWER])
    if reason is None:
        check_right(record, golds, metric)
        return
    with pytest.raises(UnusableSampleError) as raised:
        check_right(record, golds, metric)
    assert raised.value.reason == reason


def test_a_target_that_quotes_a_document_is_refused_and_one_that_names_it_is_not():
    quoting = f"<think> {LONG.text} </think>\n<answer> Danube </answer>"
    rows = cut([SEARCH, quoting], documents=[TOWN, LONG])
    check_targets(rows[0], [TOWN, LONG])
    with pytest.raises(UnusableSampleError) as raised:
        check_targets(rows[1], [TOWN, LONG])
    assert raised.value.reason == "quotes"


def test_an_observation_cannot_be_a_target():
    with pytest.raises(DataError, match="observation"):
        Piece("<information> x </information>", generated=False, trained=True)
    with pytest.raises(DataError, match="no target"):
        SftRow("1", "q", "rag_r1_mq", KINDS[0], (), (Piece("a", True),))


def test_documents_made_for_another_tokenizer_are_refused():
    pieces = (Piece("\n<information>\n<|im_end|>\n</information>\n", False), Piece(ANSWER, True, True))
    row = SftRow("made/1", "q", "rag_r1_mq", KINDS[3], ({"role": "user", "content": "q"},), pieces)
    with pytest.raises(DataError, match=r"made/1.*<\|im_end\|>.*sft-data --model"):
        MQ(row)
