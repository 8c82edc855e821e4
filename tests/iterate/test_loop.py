"""A loop takes each step with what the steps before it have made, and goes on after a kill anywhere."""

from __future__ import annotations

import json
import random
import time

import pytest

from rag_r1.runs.processes import find_leftovers
from tests.iterate.stub_loop import artefacts, facts

ROUND = ("agent", "agent_evaluation", "data", "retriever", "index", "reload", "evaluation")
STEPS = [
    "start/evaluation",
    *(f"round1/{name}" for name in ROUND),
    *(f"round2/{name}" for name in ROUND),
    "round3/agent",
    "round3/agent_evaluation",
]
COMMANDS = [step for step in STEPS if not step.endswith("/reload")]


def log(out, step: str) -> str:
    """What the command of a step was made from."""
    run = {"agent": "training", "index": "index"}.get(step.rpartition("/")[2], "run")
    return (out / step / run / "work.log").read_text()


def state(out) -> dict:
    return json.loads((out / "state.json").read_text())


@pytest.mark.slow
def test_each_step_uses_what_the_last_ones_have_made(two_rounds):
    out = two_rounds.out
    for step in ("start/evaluation", "round1/agent", "round1/agent_evaluation", "round1/data"):
        assert " first" in log(out, step), step
    for step in ("round1/evaluation", "round2/agent", "round2/data"):
        assert "round1/retriever/run/model" in log(out, step), step
    for step in ("round2/evaluation", "round3/agent", "round3/agent_evaluation"):
        assert "round2/retriever/run/model" in log(out, step), step
    assert two_rounds.orders == ["first", "out/round1/index/index", "out/round2/index/index"]
    assert sorted(facts(out)) == sorted(STEPS)


@pytest.mark.slow
def test_the_first_index_gets_the_plain_query_and_a_trained_one_the_question_too(two_rounds):
    assert log(two_rounds.out, "round1/agent").endswith(" false\n")
    assert log(two_rounds.out, "round2/agent").endswith(" true\n")


@pytest.mark.slow
@pytest.mark.parametrize("start", ["base", "previous"])
def test_later_rounds_start_from_the_base_or_from_the_round_before(loop, start):
    loop.plan["agent"]["start"] = loop.plan["retriever"]["start"] = start
    assert loop.run() == 0
    first, second = (log(loop.out, f"round{number}/agent").split()[3] for number in (1, 2))
    assert (first == second) == (start == "base")  # the model that the training has read
    assert (len(log(loop.out, "round2/retriever").splitlines()[0].split()) == 6) == (start == "previous")


@pytest.mark.slow
def test_the_state_file_tells_how_each_step_stands(loop, monkeypatch):
    monkeypatch.setenv("STUB_FAIL", "round1/retriever")
    assert loop.run() == 1
    progress = state(loop.out)
    assert progress["now"] == "round1/retriever" and [step["name"] for step in progress["steps"]] == STEPS
    stands = {step["name"]: step["status"] for step in progress["steps"]}
    place = STEPS.index("round1/retriever")
    assert all(stands[name] == "done" for name in STEPS[:place])
    assert stands["round1/index"] == "waiting"
    monkeypatch.delenv("STUB_FAIL")
    assert loop.run() == 0
    progress = state(loop.out)
    assert progress["now"] is None and {step["status"] for step in progress["steps"]} == {"done"}
    assert all(step["seconds"] >= 0 for step in progress["steps"])


def test_a_step_that_fails_names_its_log_and_shows_its_end(loop, monkeypatch, capsys):
    monkeypatch.setenv("STUB_FAIL", "round1/data")
    assert loop.run() == 1
    output = capsys.readouterr().err
    assert "the command of round1/data ended with status 3" in output and "the reason" in output
    assert str(loop.out / "round1" / "data" / "log.txt") in output
    assert "nothing was started" not in output


@pytest.mark.slow
def test_the_table_has_a_row_for_each_change_and_what_it_took(two_rounds):
    out = two_rounds.out
    rows = json.loads((out / "rounds.json").read_text())["rows"]
    of_rounds = ["round 1, agent", "round 1, retriever", "round 2, agent", "round 2, retriever"]
    assert [row["after"] for row in rows] == ["start", *of_rounds, "round 3, agent"]
    evaluated = {"requests": 2, "prompt_tokens": 40, "completion_tokens": 20}
    with_data = {"requests": 7, "prompt_tokens": 90, "completion_tokens": 520}
    assert [row["usage"] for row in rows] == [evaluated, *[evaluated, with_data] * 2, evaluated]
    step_facts = facts(out)
    assert [row["em"]["value"] for row in rows] == [step_facts[row["step"]]["em"]["value"] for row in rows]
    assert len({row["em"]["value"] for row in rows}) > 1
    text = (out / "rounds.md").read_text()
    assert all(f"| {row['after']} |" in text for row in rows)
    assert (out / "rounds.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_more_rounds_go_on_where_the_loop_has_ended(loop):
    assert loop.run("--rounds", "1") == 0
    first = artefacts(loop.out)
    assert loop.run("--rounds", "2") == 0
    second = artefacts(loop.aside())
    tables = {"rounds.json", "rounds.md", "rounds.png", "settings.yaml"}
    assert {name: second[name] for name in first if name not in tables} == {
        name: content for name, content in first.items() if name not in tables
    }
    assert loop.run("--rounds", "2") == 0 and artefacts(loop.out) == second


@pytest.mark.slow
def test_a_loop_that_is_done_asks_for_nothing(loop, server):
    assert loop.run("--rounds", "1") == 0
    orders, units = len(server.orders), loop.units()
    assert loop.run("--rounds", "1") == 0
    assert (len(server.orders), loop.units()) == (orders, units)


@pytest.mark.slow
def test_an_agent_that_stays_as_it_is_has_no_steps_and_a_control_no_retriever(loop):
    recipe = loop.plan["agent"].pop("recipe")
    assert loop.run("--rounds", "1") == 0
    assert sorted(facts(loop.aside())) == sorted(
        ["start/evaluation", *(f"round1/{name}" for name in ROUND if not name.startswith("agent"))]
    )
    loop.plan["agent"] |= {"recipe": recipe, "start": "previous"}
    del loop.plan["data"], loop.plan["retriever"]
    assert loop.run("--rounds", "2") == 0
    steps = [f"round{number}/{name}" for number in (1, 2) for name in ROUND[:2]]
    assert sorted(facts(loop.out)) == sorted(["start/evaluation", *steps])
    assert "first" in log(loop.out, "round2/agent")


@pytest.mark.slow
def test_changed_settings_are_refused_by_name_and_nothing_is_mixed(loop, capsys):
    assert loop.run("--rounds", "1") == 0
    contents = artefacts(loop.out)
    loop.plan["data"]["options"]["candidates"] = 26
    loop.plan["evaluation"]["options"] = {"right_from": 3}
    assert loop.run("--rounds", "1") == 1
    problems = capsys.readouterr().err
    assert "round1/data.options.candidates was" in problems and "--right-from 3" in problems, "both at once"
    del loop.plan["evaluation"]["options"]
    assert artefacts(loop.out) == contents
    loop.plan["data"]["options"] = {"candidates": 25, "in_flight": 3, "timeout-s": 9}  # only how fast
    assert loop.run("--rounds", "1") == 0


@pytest.mark.slow
def test_a_step_whose_input_was_made_anew_is_made_again(loop):
    assert loop.run("--rounds", "1") == 0
    (loop.out / "round1" / "retriever" / "done.json").unlink()
    (loop.out / "round1" / "retriever" / "run" / "work.log").write_text("another\n" * 3)
    assert loop.run("--rounds", "1") == 0
    assert (loop.out / "round1" / "index.old-1").exists() and (loop.out / "round2" / "agent.old-1").exists()
    assert not (loop.out / "round1" / "data.old-1").exists()


@pytest.mark.slow
def test_the_table_has_no_row_of_a_step_that_is_still_to_be_made_again(loop, monkeypatch):
    assert loop.run("--rounds", "1") == 0
    (loop.out / "round1" / "retriever" / "done.json").unlink()
    (loop.out / "round1" / "retriever" / "run" / "work.log").write_text("another\n" * 3)
    monkeypatch.setenv("STUB_FAIL", "round2/agent")
    assert loop.run("--rounds", "1") == 1
    rows = json.loads((loop.out / "rounds.json").read_text())["rows"]
    assert [row["after"] for row in rows] == ["start", "round 1, agent", "round 1, retriever"]


@pytest.mark.slow
@pytest.mark.full
def test_killed_in_each_step_before_within_and_after_its_work_it_ends_as_undisturbed(loop):
    assert loop.run() == 0
    whole = loop.aside()
    for step in COMMANDS:
        for point in (0, 2, 3):
            process = loop.start(STUB_KILL=f"{step}:{point}")
            process.join()
            assert process.exitcode == -9, (step, point)
    assert len(find_leftovers(loop.out)) == 1
    assert loop.run() == 0
    assert find_leftovers(loop.out) == []
    assert artefacts(loop.out) == artefacts(whole) and facts(loop.out) == facts(whole)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_ten_random_moments_it_ends_with_the_files_of_an_undisturbed_run(loop, seed):
    assert loop.run() == 0
    whole, units = loop.aside(), 3 * len(COMMANDS)
    drawn = random.Random(seed)
    killed = 0
    for target in sorted(drawn.sample(range(units), 10)):
        process = loop.start(STUB_S="0.4")  # what is left behind is slower than the next start
        while loop.units() < target and process.is_alive():
            time.sleep(0.001)
        time.sleep(drawn.uniform(0, 0.5))  # also between two steps
        process.kill()
        process.join()
        killed += process.exitcode == -9
    assert killed == 10
    assert loop.run() == 0
    assert artefacts(loop.out) == artefacts(whole) and facts(loop.out) == facts(whole)
