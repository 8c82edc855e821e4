"""Trajectory records on disk: what was written is read back, whatever the writer's end was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_r1.agent import KINDS, CallRecord, Trajectory, Turn
from rag_r1.agent.records import (
    TrajectoryDump,
    calls_by_tool,
    read_records,
    records_by_step,
    summary,
    trajectory_of,
)
from rag_r1.io.errors import DataError
from rag_r1.protocols import Document

#: Anything that Python's text can hold: half characters, and what other readers take for the end of a line.
TEXTS = st.text(st.characters() | st.sampled_from('\ud800\u2028\x85\n\r\\"é'))


@st.composite
def trajectories(draw) -> Trajectory:
    scores = draw(st.lists(st.floats(-5, 5), max_size=3))
    turns = [
        Turn.searched(draw(TEXTS), [draw(TEXTS)], [[Document("1", draw(TEXTS), 0.5)]], generated_tokens=3)
        for _ in scores
    ]
    record = Trajectory(draw(TEXTS), draw(TEXTS), "rag_r1_mq", turns, answer=draw(st.none() | TEXTS))
    record.rewards, record.turn_scores = {"score": draw(st.none() | st.floats(-5, 5))}, scores
    record.add_failure("judge", draw(TEXTS))
    return record


def written(folder: Path, records: list[Trajectory]) -> Path:
    """The file to which the records were dumped."""
    dump = TrajectoryDump(str(folder))
    assert all(dump.write(record, step=3, split="train", golds=["x"]) for record in records)
    (path,) = folder.rglob("*.jsonl")
    return path


def test_importing_them_imports_no_framework():
    code = (
        "import sys, rag_r1.agent.records\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'verl', 'torch', 'ray', 'vllm', 'transformers', 'omegaconf', 'httpx', 'aiohttp'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@given(st.lists(trajectories(), min_size=1, max_size=3))
def test_what_was_written_is_read_back(tmp_path_factory, records):
    path = written(tmp_path_factory.mktemp("run"), records)
    results = list(read_records(path))
    assert list(map(trajectory_of, results)) == records
    assert {(record["step"], record["split"], *record["golds"]) for record in results} == {(3, "train", "x")}


def test_the_data_of_a_record_share_nothing_with_it():
    record = Trajectory("a", "?", "rag_r1_mq", turn_scores=[0.5])
    record.to_dict()["turn_scores"].clear()
    assert record.turn_scores == [0.5]


@given(st.lists(trajectories(), min_size=1, max_size=2), st.data())
def test_wherever_writing_was_cut_off_the_records_before_are_read(tmp_path_factory, records, data):
    path = written(tmp_path_factory.mktemp("run"), records)
    whole = path.read_bytes()
    size = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:size])
    ends = [i for i, byte in enumerate(whole) if byte == ord("\n")]
    # The newline is the last byte of a record: without it all of the record is there.
    assert list(map(trajectory_of, read_records(path))) == records[: sum(end <= size for end in ends)]


@pytest.mark.parametrize("line", ["{broken", "[1, 2]", "7", '"text"', "[" * 100_000, "\x00"])
def test_a_broken_line_is_named_with_its_file(tmp_path, line, caplog):
    (path := tmp_path / "step_000001-7.jsonl").write_text(f'{{"id": "a"}}\n\n{line}\n{{"id": "b"}}\n')
    read = read_records(tmp_path)
    assert next(read) == {"id": "a"}
    with pytest.raises(DataError, match=r"step_000001-7\.jsonl, line 3: not a trajectory record"):
        next(read)
    assert list(read_records(path, skip_broken=True)) == [{"id": "a"}, {"id": "b"}]
    assert f"{path}, line 3" in caplog.text


def test_files_and_folders_are_read_in_the_given_order_and_folders_by_name(tmp_path):
    for name in ("run/val/step_2", "run/train/step_1", "run/train/step_10", "more", "run/notes.txt"):
        path = tmp_path / (name if name.endswith("txt") else f"{name}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"id": name}))
    results = [record["id"] for record in read_records(tmp_path / "more.jsonl", str(tmp_path / "run"))]
    assert results == ["more", "run/train/step_1", "run/train/step_10", "run/val/step_2"]


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere: there is no such file or folder"):
        list(read_records(tmp_path / "nowhere"))
    assert records_by_step(tmp_path / "nowhere") == {}


def write_step(path: Path, records: list[dict], time_s: int) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"half of a li')
    os.utime(path, (time_s, time_s))


def record(id_: str, em: float) -> dict:
    return {"id": id_, "step": 3, "rewards": {"em": em}}


def test_a_step_that_was_played_again_after_a_crash_counts_once(tmp_path):
    write_step(tmp_path / "step_000003-900.jsonl", [record("a#0", 0.0), record("a#1", 0.0)], time_s=1)
    write_step(tmp_path / "step_000003-100.jsonl", [record("a#0", 1.0), record("b#0", 1.0)], time_s=2)
    (records,) = records_by_step(tmp_path).values()
    assert {r["id"]: r["rewards"]["em"] for r in records} == {"a#0": 1.0, "a#1": 0.0, "b#0": 1.0}


@pytest.mark.parametrize("other", [{}, {"id": "b", "step": None}, {"step": 3}, {"id": ["b"], "step": 3}])
def test_an_object_without_step_and_id_is_no_record_of_a_step(tmp_path, other, caplog):
    write_step(tmp_path / "step_000003-1.jsonl", [other, record("a", 1.0)], time_s=1)
    assert records_by_step(tmp_path) == {3: [record("a", 1.0)]}
    assert "step_000003-1.jsonl, line 1: it has no step or no id" in caplog.text


BARE = {"id": "a", "question": "?", "protocol": "x"}
CALL_WITHOUT_ARGUMENTS = {"text": "", "action": "search", "calls": [{"tool": "search"}]}


DEEP = {**BARE, "paths": reduce(lambda inner, _: [inner], range(5000), [])}


@pytest.mark.parametrize(
    "broken", [{}, {**BARE, "turns": [{"txt": ""}]}, {**BARE, "turns": [CALL_WITHOUT_ARGUMENTS]}, DEEP]
)
def test_a_record_that_is_no_trajectory_is_refused(broken):
    with pytest.raises(DataError, match="is not a trajectory"):
        trajectory_of(broken)


def test_the_summary_tells_how_an_episode_went_with_the_same_keys_for_all():
    turns = [
        Turn.searched("", ["a", "b"], status="tool_failure", repeated_queries=1),
        Turn("", "invalid", status="invalid"),
        Turn("", "backtrack", removed=[0, 1], simulated=3),
        Turn("", "answer"),
    ]
    turns[0].calls[0].status = "failed"
    record = Trajectory("a", "?", "rag_r1_mq", turns, "x", "answered", seconds=2.5, retries=1)
    record.add_failure("retriever", "away")
    report = summary(record)
    expected = {"turns": 4, "searches": 2, "repeated_queries": 1, "answered": 1, "token_limit": 0}
    expected |= {"retries": 1, "tool_failures": 1, "bad_row": 0, "invalid_turns": 1, "seconds": 2.5}
    expected |= {"removed_turns": 2, "simulated_observations": 3}
    expected |= {"calls": 2, "failed_calls": 1, "refused_calls": 0}
    assert report == {**expected, **{f"failed_{kind}": kind == "retriever" for kind in KINDS}}
    assert set(report) == set(summary(Trajectory("b", "?", "rag_r1_mq")))


def test_the_calls_of_each_tool_are_counted_with_the_same_keys_for_all():
    turn = Turn("", "call", [CallRecord(name, {}) for name in ("notes", "notes", "notes", "nowhere")])
    for call, status in zip(turn.calls, ("failed", "ok", "refused", "refused"), strict=True):
        call.status = status
    report = calls_by_tool(Trajectory("a", "?", "rag_r1_mq", [turn, turn]), ["search", "notes"])
    assert report == {
        "calls/search": 0, "failed_calls/search": 0, "refused_calls/search": 0,
        "calls/notes": 6, "failed_calls/notes": 2, "refused_calls/notes": 2,
    }  # fmt: skip
    assert set(report) == set(calls_by_tool(Trajectory("b", "?", "rag_r1_mq"), ["search", "notes"]))
