"""Which samples are kept, and that everything that is left out is counted with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_r1.data.sft_tokens import SftTokens
from rag_r1.protocols import Document, load_protocol
from rag_r1.sft.samples import SampleRules, SampleSelection, split_rows
from rag_r1.sft.segment import KINDS, REASONS
from tests.evaluation.made_traces import ANSWER, SEARCH, TOWN, as_record, episodes, played, tokenizer

TOKENS = SftTokens(tokenizer(), load_protocol("rag_r1_mq"))


def selected(records, **rules) -> SampleSelection:
    selection = SampleSelection(TOKENS, SampleRules(**{"max_context": 1 << 16, **rules}))
    selection.add_records(records)
    return selection


def record(lines, number=0, golds=("Danube",), **options):
    trajectory, _ = played(lines, question=f"Which river? {number}", id=f"made/{number}", **options)
    return as_record(trajectory, *golds)


def reasons(selection: SampleSelection) -> list[tuple[str, str]]:
    return [(entry["what"], entry["reason"]) for entry in selection.dropped]


def test_right_traces_are_cut_and_wrong_ones_are_named():
    selection = selected([record([SEARCH, ANSWER], 1), record([SEARCH, ANSWER], 2, golds=("Rhine",))])
    assert [row.kind for row in selection.rows] == [KINDS[1], KINDS[3]]
    (dropped,) = selection.dropped
    assert (dropped["id"], dropped["reason"]) == ("made/2", "wrong") and "Danube" in dropped["detail"]


def test_wrong_traces_are_kept_if_only_the_format_is_taught():
    assert len(selected([record([SEARCH, ANSWER], 2, golds=("Rhine",))], metric=None).rows) == 2


def test_traces_that_answer_at_once_are_thinned_and_those_that_search_are_not():
    records = [record([ANSWER], number) for number in range(6)]
    records += [record([SEARCH, ANSWER], number) for number in range(6, 9)]
    selection = selected(records)
    kinds = [row.kind for row in selection.rows]
    assert (kinds.count(KINDS[0]), kinds.count(KINDS[3])) == (3, 3)
    assert reasons(selection) == [("trace", "thought_only")] * 3
    assert selected(records).rows == selection.rows
    assert len(selected(records, seed=1).rows) == len(selection.rows)
    assert len([row for row in selected(records, thought_only=1.0).rows if row.kind == KINDS[0]]) == 6
    assert len([row for row in selected(records, thought_only=0.0).rows if row.kind == KINDS[0]]) == 0
    two_search = selected(records[:-1], thought_only=0.6)  # 2 * 0.6 / 0.4 is 2.9999999999999996 in floats
    assert [row.kind for row in two_search.rows].count(KINDS[0]) == 3


def test_without_any_search_nothing_is_thinned():
    assert len(selected([record([ANSWER], number) for number in range(3)]).rows) == 3


def test_equal_samples_stay_once():
    selection = selected([record([SEARCH, ANSWER], 1), record([SEARCH, ANSWER], 1)])
    assert len(selection.rows) == 2 and reasons(selection) == [("sample", "repeated")] * 2


def test_a_sample_that_quotes_is_left_out_and_the_others_of_its_trace_stay():
    long = Document("2", " ".join(f"word{number}" for number in range(20)))
    lines = [SEARCH, f"<think> {long.contents} </think>\n<answer> Danube </answer>"]
    selection = selected([record(lines, 1, documents=[long])])
    assert [row.kind for row in selection.rows] == [KINDS[1]]
    assert reasons(selection) == [("sample", "quotes")]


def test_samples_that_are_too_long_are_left_out_by_context_and_by_target():
    whole = record([SEARCH, ANSWER], 1)
    rows = selected([whole]).rows
    lengths = [row.context_tokens for row in rows]
    assert lengths[0] < lengths[1]
    selection = selected([whole], max_context=lengths[0])
    assert [row.kind for row in selection.rows] == [KINDS[1]]
    assert reasons(selection) == [("sample", "too_long")]
    assert selected([whole], max_target=rows[0].target_tokens - 1).rows == [
        row for row in rows if row.target_tokens < rows[0].target_tokens
    ]
    assert selected([whole], layout="whole", max_context=lengths[1] - 1).rows == []
    assert len(selected([whole], layout="whole", max_context=lengths[1]).rows) == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"question": 3},
        {"id": None},
        {"turns": [{"text": 1, "action": "answer"}]},
        {"turns": 5},
        {"answer": 3},
        {"status": "answered"},
    ],
    ids=str,
)
def test_records_that_are_none_are_counted_as_bad_rows(broken):
    whole = record([SEARCH, ANSWER], 1)
    spoilt = broken if "status" in broken else {**whole, **broken}
    selection = selected([spoilt, whole])
    assert selection.bad.count == 1 and len(selection.rows) == 2


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(episodes(), max_size=4))
def test_every_trace_is_kept_or_left_out_with_a_reason_and_no_target_is_an_observation(drawn):
    records = [as_record(replace(trajectory, protocol="rag_r1_mq"), "Danube") for trajectory, _ in drawn]
    selection = selected(records, thought_only=0.5)
    traces = [entry for entry in selection.dropped if entry["what"] == "trace"]
    used = selection.counts["traces that search"] + selection.counts["traces that answer at once"]
    assert len(traces) + used + selection.bad.count == len(records)
    assert {entry["reason"] for entry in selection.dropped} <= set(REASONS)
    written = {turn["text"] for trajectory in records for turn in trajectory["turns"]}
    assert {target for row in selection.rows for target in row.targets} <= written


TRACE = record([SEARCH, ANSWER], 1, documents=[TOWN])


def test_a_question_that_is_written_in_two_ways_is_one():
    [row, *_] = selected([TRACE]).rows
    rows = [replace(row, question=text) for text in ("Who?", "who ?", "What?", "WHAT")]
    for seed in range(5):
        sides = [{row.question[:3].lower() for row in side} for side in split_rows(rows, 0.5, seed)]
        assert sorted(map(sorted, sides)) == [["wha"], ["who"]]


@given(st.integers(0, 12), st.floats(0, 1), st.integers(0, 3))
def test_a_question_is_on_one_side_only(questions, share, seed):
    base = selected([TRACE]).rows
    rows = [replace(row, question=f"q{number}") for number in range(questions) for row in base]
    train, validation = split_rows(rows, share, seed)
    sides = [{row.question for row in side} for side in (train, validation)]
    assert sides[0].isdisjoint(sides[1]) and len(train) + len(validation) == len(rows)
    assert bool(train) == bool(rows)
    assert bool(validation) == (share > 0 and questions > 1)
