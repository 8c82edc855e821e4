"""Rounds: the searches of trajectories, with the turns before them as they were generated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rag_r1.agent import ReplayTurn, Trajectory, Turn
from rag_r1.agent.trajectory import CallRecord
from rag_r1.protocols import Document, load_protocol
from rag_r1.retriever.data.trajectories import TrajectoryReader
from rag_r1.runs.errors import RunError
from tests.evaluation.scripted_runs import setup_of

SETUP = replace(setup_of(), protocol=load_protocol("rag_r1_mq"))
ROME, PARIS = Document("1", '"Rome"\nRome is a city.'), Document("2", '"Paris"\nParis is a city.')
ANSWER = Turn("<answer> Rome </answer>", "answer", generated_tokens=23)


def searched(*queries: str, document=ROME) -> Turn:
    text = f"<search> {json.dumps(list(queries))} </search>"
    return Turn.searched(text, queries, [[document]] * len(queries), generated_tokens=len(text))


def record(name: str, *turns: Turn, right: bool | None = True, **more: object) -> dict:
    trajectory = Trajectory(f"{name}#0", "Who?", "rag_r1_mq", list(turns), "Rome", "answered")
    line = {"question_id": name, "golds": ["Rome"], "prompt": [{"role": "user", "content": "Who?"}]}
    line |= {"right": right, "try": 1, "data_source": "made", "sample": 0}
    return {**line, **trajectory.to_dict(), **more}


def run_of(folder: Path, *records: dict, tape: list[dict] | None = None) -> TrajectoryReader:
    (folder / "trajectories").mkdir(parents=True)
    (folder / "journal").mkdir()
    for path, lines in (("trajectories/records.jsonl", records), ("journal/exchanges.ndjson", tape or [])):
        (folder / path).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TrajectoryReader(folder, SETUP)


def taped(name: str, turn: int, ids: list[int] | None) -> dict:
    answer = {"text": "", "ids": ids}
    return {"ask": f"{name}#0", "turn": turn, "sha256": "", "answer": answer, "usage": {"requests": 1}}


def test_each_search_of_a_turn_is_a_round_whose_history_is_the_turns_before(tmp_path):
    reader = run_of(tmp_path, record("q", searched("a", "b"), searched("c"), ANSWER))
    (trajectory,) = reader
    assert [(search.key, search.turn, search.query, search.history) for search in trajectory.rounds] == [
        (("q", 1), 0, "a", ()),
        (("q", 2), 0, "b", ()),
        (("q", 3), 1, "c", ("a", "b")),
    ]
    assert (len(reader), reader.rounds, trajectory.dataset, trajectory.golds) == (1, 3, "made", ("Rome",))
    assert len({search.fingerprint for search in trajectory.rounds}) == 3


@pytest.mark.parametrize(
    ("kept", "rows", "steps"),
    [
        (["Italy", " ", "Rome"], {}, ("Italy", "Rome")),
        ("Italy", {}, ("Italy",)),
        (["Italy"], {"q": ["Latium"]}, ("Latium",)),
        (None, {"q": ["Latium"]}, ("Latium",)),
        (["Italy"], {"other": ["Latium"]}, ("Italy",)),
        (None, {}, ()),
    ],
)
def test_the_answers_of_steps_are_those_of_the_rows_or_else_those_that_the_records_kept(
    tmp_path, kept, rows, steps
):
    run_of(tmp_path, record("q", searched("a"), ANSWER, metadata={"hops": 2, "step_answers": kept}))
    reader = TrajectoryReader(tmp_path, SETUP, rows)
    assert [trajectory.step_answers for trajectory in reader] == [steps] and reader.with_steps == bool(steps)


def test_the_past_of_a_round_has_what_was_found_but_for_its_own_search(tmp_path):
    turns = searched("a", "b"), searched("c", "d"), ANSWER
    (trajectory,) = run_of(tmp_path, record("q", *turns))
    past = trajectory.rounds[2].past([PARIS])
    first = ReplayTurn.of(SETUP.codec.encode(turns[0].text), turns[0].calls)
    assert past[0] == first and len(past) == 2
    assert list(past[1].results.values()) == [(PARIS,), (ROME,)]


def test_the_context_of_a_round_ends_with_its_search_and_has_the_documents_before(tmp_path):
    (trajectory,) = run_of(tmp_path, record("q", searched("a"), searched("c", document=PARIS), ANSWER))
    first, second = (search.context(SETUP.protocol) for search in trajectory.rounds)
    assert first == searched("a").text and second.startswith(first) and second.endswith(searched("c").text)
    assert "Rome is a city." in second and "Paris is a city." not in second


def test_a_round_is_another_if_anything_before_it_was_another(tmp_path):
    (first,) = run_of(tmp_path / "a", record("q", searched("a"), searched("c"), ANSWER))
    turns = searched("a", document=PARIS), searched("c", document=PARIS), ANSWER
    (second,) = run_of(tmp_path / "b", record("q", *turns))
    assert first.rounds[0].fingerprint == second.rounds[0].fingerprint, "what a search finds comes after it"
    assert first.rounds[1].fingerprint != second.rounds[1].fingerprint


def test_tokens_are_those_that_were_sampled_if_they_make_the_text(tmp_path):
    class Pairs(type(SETUP.codec)):
        """A token above 1000 stands for the two characters "ab"."""

        def decode(self, ids):
            return "".join("ab" if token > 1000 else chr(token) for token in ids)

    text = '<search> ["ab"] </search>'
    turn = Turn.searched(text, ["ab"], [[ROME]], generated_tokens=len(text) - 1)
    ids = [*map(ord, text[:11]), 2000, *map(ord, text[13:])]
    assert Pairs().decode(ids) == text
    tape = [taped("q", 0, [1, 2]), taped("q", 0, [*ids, 5, 5]), taped("q", 1, [7])]
    run_of(tmp_path, record("q", turn, ANSWER), tape=tape)
    (trajectory,) = TrajectoryReader(tmp_path, replace(SETUP, codec=Pairs()))
    assert trajectory.token_ids[0] == tuple(ids), "the last answer counts, as far as the turn has taken it"
    assert trajectory.token_ids[1] == tuple(map(ord, ANSWER.text)), "what is not the turn's text is encoded"


def test_trajectories_that_cannot_be_scored_are_counted(tmp_path):
    cut = Turn('<search> ["z"] </search>', "search")
    unshown = Turn("<search> z </search>", "search", [CallRecord("search", {"query": "z"})])
    broken, refused = searched("a"), searched(" ")
    broken.calls[0].status, refused.calls[0].status = "failed", "refused"
    reader = run_of(
        tmp_path,
        record("right", searched("a"), ANSWER),
        record("wrong", searched("a"), ANSWER, right=False),
        record("failed", searched("a"), right=None),
        record("known", ANSWER),
        record("cut", searched("a"), cut, right=False),
        record("unshown", searched("a"), unshown, right=False),
        record("broken", searched("a"), broken, ANSWER),
        record("refused", refused, searched("a"), ANSWER),
    )
    assert [trajectory.id for trajectory in reader] == ["right", "wrong", "refused"]
    assert reader.excluded == {"failed": 1, "not_searched": 1, "not_carried_out": 2, "call_failed": 1}


def test_a_turn_that_was_cut_off_by_a_kill_and_a_missing_tape_do_no_harm(tmp_path):
    run_of(tmp_path, record("q", searched("a"), ANSWER))
    with (tmp_path / "trajectories" / "records.jsonl").open("a") as file:
        file.write('{"question_id": "torn')
    (tmp_path / "journal" / "exchanges.ndjson").unlink()
    assert [trajectory.id for trajectory in TrajectoryReader(tmp_path, SETUP)] == ["q"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"protocol": "search_r1"}, "was played with --protocol search_r1"),
        ({"sample": 1}, "several episodes"),
        ({"paths": [{}]}, "several episodes"),
        ({"turns": 7}, "records.jsonl, line 1 is not of an evaluation"),
        (
            {"turns": [{"text": 7, "action": "think", "status": "ok", "calls": []}]},
            "line 1 .*'7' is not of type str",
        ),
        ({"golds": "Rome"}, "line 1 is not of an evaluation .*'Rome' is not of type list"),
        ({"golds": [1]}, "line 1 is not of an evaluation"),
        ({"prompt": ["Who?"]}, "line 1 is not of an evaluation"),
        ({"right": "yes"}, "line 1 is not of an evaluation"),
    ],
)
def test_a_run_that_cannot_be_used_is_refused(tmp_path, more, message):
    with pytest.raises((RunError), match=message):
        run_of(tmp_path, record("q", searched("a"), ANSWER, **more))


@pytest.mark.parametrize("line", ["[1]", "7", "{}", "no json", "[" * 100_000, '{"turns": [{"calls": [3]}]}'])
@pytest.mark.parametrize("name", ["trajectories/records.jsonl", "journal/exchanges.ndjson"])
def test_a_line_that_no_evaluation_has_written_is_named(tmp_path, name, line):
    run_of(tmp_path, record("q", searched("a"), ANSWER), tape=[taped("q", 0, None)])
    with (tmp_path / name).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunError, match=f"{Path(name).name}, line 2 is not of an evaluation"):
        TrajectoryReader(tmp_path, SETUP)


@pytest.mark.parametrize("answer", [3, "text", [1], {"ids": "abc"}, {"ids": [1, None]}, {"ids": {"a": 1}}])
def test_an_answer_on_the_tape_without_token_ids_costs_no_trajectory(tmp_path, answer):
    tape = [{**taped("q", 0, None), "answer": answer}]
    if not isinstance(answer, dict):
        with pytest.raises(RunError, match="exchanges.ndjson, line 1 "):
            run_of(tmp_path, record("q", searched("a"), ANSWER), tape=tape)
        return
    (trajectory,) = run_of(tmp_path, record("q", searched("a"), ANSWER), tape=tape)
    assert trajectory.token_ids[0] == tuple(SETUP.codec.encode(searched("a").text))


def test_a_run_that_is_not_finished_is_refused(tmp_path):
    with pytest.raises(RunError, match="give the folder of a finished `rag-r1 eval`"):
        TrajectoryReader(tmp_path, SETUP)
