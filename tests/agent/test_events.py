"""An episode can be observed while it runs, and is the same whether it is or not."""

import asyncio
import json

import pytest

from rag_r1.agent.records import append_records, read_records, trajectory_of
from rag_r1.protocols import Failure, load_protocol
from tests.fakes.scripted_engine import ANSWER, SEARCH, Searcher, make_episode, untimed

MQ = load_protocol("rag_r1_mq")


def play(lines, observer=None, result=None):
    searcher = Searcher(result) if result is not None else None
    episode = make_episode(MQ, lines, searcher, observer=observer)
    return asyncio.run(episode.run("id", "q", [1])), episode.ledger


def test_events_tell_what_the_record_holds_in_the_order_in_which_it_happened():
    events = []
    record, _ = play([SEARCH, "hm", ANSWER], events.append)
    kinds = ["turn", "tokens", "calls", "documents", "turn", "tokens", "turn", "tokens", "answer", "ended"]
    assert [event.kind for event in events] == kinds
    assert [event.turn for event in events] == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]
    report = {event.kind: event.data for event in events[:4]}
    assert report["tokens"]["text"] == record.turns[0].text
    assert report["documents"]["calls"] == [call.to_dict() for call in record.turns[0].calls]
    assert events[-1].data == record.to_dict()
    assert json.loads(json.dumps([event.to_dict() for event in events]))


def test_a_failure_is_told_when_it_happens():
    events = []
    record, _ = play([SEARCH, ANSWER], events.append, Failure("away", "retriever", "refused"))
    failure = next(event for event in events if event.kind == "failure")
    assert failure.data == {"kind": "retriever", "detail": "refused"} and failure.turn == 0
    assert record.failures


def test_an_observer_that_raises_is_told_in_the_log_and_changes_nothing(caplog):
    received = []

    def broken(event):
        received.append(event)
        raise OSError("the disk is full")

    record, ledger = play([SEARCH, ANSWER], broken)
    plain, undisturbed = play([SEARCH, ANSWER])
    assert len(received) == 1 and "the disk is full" in caplog.text
    assert untimed(record) == untimed(plain) and ledger.rows() == undisturbed.rows()


@pytest.mark.parametrize("lines", [[SEARCH, ANSWER], ["hm"], [ANSWER]])
def test_the_tokens_are_the_same_with_and_without_an_observer(lines):
    assert play(lines, lambda event: None)[1].rows() == play(lines)[1].rows()


def test_events_are_json_lines(tmp_path):
    events = []
    record, _ = play([SEARCH, "half of a character: \ud800", ANSWER], events.append)
    append_records(tmp_path / "run.jsonl", *(event.to_dict() for event in events))
    assert list(read_records(tmp_path / "run.jsonl")) == [event.to_dict() for event in events]
    assert trajectory_of(events[-1].to_dict()["data"]) == record
