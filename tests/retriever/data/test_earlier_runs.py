"""`rag-r1 retriever data --trajectories`: a run that was played before is used if the same agent has played
it, and refused with both values otherwise."""

from __future__ import annotations

import json
import shutil

import pytest

from rag_r1.retriever.data import command
from tests.fakes.scored_world import FEW, scored_world

pytestmark = pytest.mark.slow


def test_an_evaluation_that_was_played_before_is_used(finished, tmp_path):
    world, out = finished
    requests = len(world.policy.bodies)
    args = world.words(tmp_path / "out", *FEW, "--utility", "relevance", trajectories=out / "trajectories")
    assert command.main(args) == 0
    assert len(world.policy.bodies) == requests and not (tmp_path / "out" / "trajectories").exists()
    assert (tmp_path / "out" / "relevance.jsonl").read_bytes() == (out / "relevance.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", {"name": "another"}, "model was 'another' and is now 'policy'"),
        ("budget", {"max_turns": 99}, "budget.max_turns was 99 and is now"),
        ("protocol", {"sha256": "0" * 64}, "protocol sha256 was '000"),
    ],
)
def test_a_run_that_another_agent_has_played_is_refused_with_both_values(
    finished, tmp_path, capsys, key, value, message
):
    world, out = finished
    run = tmp_path / "run"
    shutil.copytree(out / "trajectories", run)
    card = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps({**card, key: {**card[key], **value}}))
    requests = len(world.policy.bodies)
    args = world.words(tmp_path / "out", *FEW, "--utility", "relevance", trajectories=run)
    for words in (args, [*args, "--check-only"]):
        assert command.main(words) == 1
        output = capsys.readouterr().err
        assert "was begun with other settings" in output and message in output
    assert len(world.policy.bodies) == requests


def test_a_run_of_another_protocol_is_refused(finished, tmp_path, capsys):
    world, out = finished
    args = world.words(tmp_path / "out", trajectories=out / "trajectories", protocol="search_r1")
    assert command.main(args) == 1
    assert "protocol was 'rag_r1_sq' and is now 'search_r1'" in capsys.readouterr().err


def test_the_checks_refuse_an_agent_whose_trajectories_cannot_be_continued(finished, tmp_path, capsys):
    words = finished[0].words(tmp_path / "out", "rag_r1.agent.max_state=9", "--check-only")
    assert command.main(words) == 1
    assert "continuations need rag_r1.agent.paths=1 and no max_state" in capsys.readouterr().err


def test_the_checks_name_each_file_about_the_questions_that_cannot_be_used(finished, tmp_path, capsys):
    answerable = tmp_path / "answerable.json"
    flags = {"answerable": answerable, "supporting": tmp_path / "none.jsonl", "index": tmp_path / "none"}
    assert command.main(finished[0].words(tmp_path / "out", "--check-only", **flags)) == 1
    message = capsys.readouterr().err
    assert "3 problems" in message and all(str(path) in message for path in flags.values())
    answerable.write_text('["of no question"]')
    words = finished[0].words(tmp_path / "out", "--check-only", answerable=answerable)
    assert command.main(words) == 1
    assert "names none of the run's questions" in capsys.readouterr().err


def test_a_run_without_a_card_is_refused(finished, tmp_path, capsys):
    world, out = finished
    shutil.copytree(out / "trajectories", tmp_path / "run")
    (tmp_path / "run" / "provenance.json").unlink()
    assert command.main(world.words(tmp_path / "out", *FEW, trajectories=tmp_path / "run")) == 1
    assert "has no provenance.json: give the folder of a finished" in capsys.readouterr().err


def test_a_model_whose_files_have_changed_since_is_another_one(tmp_path, tokenizer, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy").mkdir()  # the folder of the model that the server has under its name
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"1")
    with scored_world(tmp_path, tokenizer, count=2) as world:
        run = ("--utility", "correctness", "--trajectories", tmp_path / "out" / "trajectories")
        assert command.main(world.words(tmp_path / "out", *FEW, "--utility", "correctness")) == 0
        requests = len(world.policy.bodies)
        assert command.main(world.words(tmp_path / "out", *FEW, "--utility", "correctness")) == 0
        assert len(world.policy.bodies) == requests
        (tmp_path / "policy" / "model.safetensors").write_bytes(b"22")
        card = json.loads((tmp_path / "out" / "trajectories" / "provenance.json").read_text())
        assert command.main(world.words(tmp_path / "out", *FEW, *run)) == 1
        assert f"model sha256 was '{card['model']['sha256']}'" in capsys.readouterr().err
        (tmp_path / "out" / "trajectories" / "provenance.json").write_text(
            json.dumps({**card, "model": {"name": "policy"}})
        )
        assert command.main(world.words(tmp_path / "out", *FEW, *run)) == 1
        assert "files.model.safetensors was" in capsys.readouterr().err
