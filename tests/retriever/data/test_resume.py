"""`rag-r1 retriever data` when its command is repeated: after servers were started again, after a judge or an
agent has failed, and when nothing is left to do."""

from __future__ import annotations

import json
import shutil

import pytest

from rag_r1.retriever.data import command, steps
from tests.fakes.scored_world import FEW, lines, scored_world, texts_of

pytestmark = pytest.mark.slow


def forbid_the_model(monkeypatch) -> None:
    def start(args):
        raise AssertionError("the model was started")

    monkeypatch.setattr(steps, "serve_model", start)


def test_a_finished_run_asks_nothing_and_another_rule_only_selects_again(finished, capsys):
    world, out = finished
    bodies, cases = len(world.policy.bodies), len(world.judge.cases)
    contents = (out / "train.jsonl").read_bytes()
    assert command.main(world.words(out, *FEW, "--selection", "faithful", "--utility", "correctness")) == 0
    other = (out / "train.jsonl").read_bytes()
    assert command.main(world.words(out, *FEW)) == 0
    assert (out / "train.jsonl").read_bytes() == contents != other
    assert (len(world.policy.bodies), len(world.judge.cases)) == (bodies, cases)


def test_a_server_that_was_started_again_is_the_same_and_one_with_a_new_encoder_is_not(
    tmp_path, tokenizer, capsys
):
    with scored_world(tmp_path, tokenizer, count=2, separator=" [SEP] ") as world:
        args = world.words(tmp_path / "out", *FEW, "--estimate")
        description = {"encoder_sha256": "a" * 64, "index_version": 1, "paged_in": 0}
        world.policy.described = description
        assert command.main(args) == 0
        requests = len(world.policy.bodies)
        world.policy.described = {**description, "index_version": 2, "paged_in": 1}
        assert command.main(args) == 0
        assert len(world.policy.bodies) == requests
        capsys.readouterr()
        world.policy.described = {**description, "encoder_sha256": "b" * 64}
        assert command.main(args) == 1
        assert "encoder_sha256 was 'aaa" in capsys.readouterr().err


def test_a_server_that_has_reloaded_the_same_index_is_the_same_and_one_with_another_is_not(
    tmp_path, tokenizer, capsys
):
    with scored_world(tmp_path, tokenizer, separator=" [SEP] ") as world:
        args = world.words(tmp_path / "out", *FEW, "--utility", "relevance")
        assert command.main([*args, "--estimate"]) == 0
        world.policy.described = {"index_version": 2}
        assert command.main(args) == 0
        world.policy.separator = " | "
        assert command.main(args) == 1
        assert "retriever.served.separator was ' [SEP] ' and is now ' | '" in capsys.readouterr().err


def test_a_malformed_list_costs_a_request_and_not_the_round(finished, tmp_path, tokenizer):
    def once_wrong(case, said, attempt):
        """The first reply to each case has an entry too many, or one that is none."""
        wrong = [*json.loads(said), 5] if len(said) % 2 else [None, *json.loads(said)[1:]]
        return said if attempt else json.dumps(wrong)

    with scored_world(tmp_path, tokenizer, mood=once_wrong) as world:
        assert command.main(world.words(tmp_path / "out", *FEW)) == 0
        again = [body for body in world.judge.bodies if body["temperature"] > 0]
    assert again and {body["seed"] for body in again} == {1}
    for name in ("sub_answers.jsonl", "relevance.jsonl", "train.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (finished[1] / name).read_bytes()


def test_a_round_that_the_judge_never_scores_is_left_out_and_tried_again(
    finished, tmp_path, tokenizer, capsys
):
    broken = [True]

    def mood(case, said, attempt):
        return "ten of ten" if broken[0] and case.get("query") == "Morgol Motors" else said

    with scored_world(tmp_path, tokenizer, mood=mood) as world:
        args = world.words(tmp_path / "out", *FEW)
        assert command.main(args) == 0
        scored = {(r["id"], r["round_index"]) for r in lines(tmp_path / "out" / "relevance.jsonl")}
        assert "the same command tries 1 of the others again" in capsys.readouterr().out
        every = {(r["id"], r["round_index"]) for r in lines(finished[1] / "relevance.jsonl")}
        assert len(every - scored) == 1
        broken[0] = False
        requests = len(world.judge.cases)
        assert command.main(args) == 0
        assert 0 < len(world.judge.cases) - requests <= 2, "only what was missing is asked for"
    assert (tmp_path / "out" / "train.jsonl").read_bytes() == (finished[1] / "train.jsonl").read_bytes()


def test_a_judge_that_is_gone_costs_no_score_twice(finished, tmp_path, tokenizer, capsys):
    gone = [True]

    def mood(case, said, attempt):
        return None if gone[0] and "searches" in case and "river" in case["question"] else said

    with scored_world(tmp_path, tokenizer, mood=mood) as world:
        args = world.words(tmp_path / "out", *FEW)
        assert command.main(args) == 0
        assert "requests to the judge that were unanswered: " in capsys.readouterr().out
        scored = sum("passages" in case for case in world.judge.cases)
        gone[0] = False
        assert command.main(args) == 0
        every = sum("passages" in case for case in world.judge.cases)
    records = lines(tmp_path / "out" / "candidates.jsonl")
    candidates = [search["candidate_passage_ids"] for record in records for search in record["trajectory"]]
    whole = sum(-(-len(names) // 10) for names in candidates)
    assert 0 < scored < every == whole, "a round is scored when its sub-answer is settled, and then once"
    assert (tmp_path / "out" / "train.jsonl").read_bytes() == (finished[1] / "train.jsonl").read_bytes()


def test_a_model_is_started_only_if_something_is_left_to_play(finished, tmp_path, monkeypatch):
    """What the server would be started for stays marked as done."""
    world, out = finished
    forbid_the_model(monkeypatch)
    assert command.main(world.words(out, *FEW)) == 0
    (out / "relevance.jsonl").unlink()
    assert command.main(world.words(out, *FEW)) == 0, "the judge has said all that is needed"
    contents = (out / "correctness.jsonl").read_bytes()
    (out / "correctness.jsonl").unlink()
    with pytest.raises(AssertionError, match="the model was started"):
        command.main(world.words(out, *FEW))
    monkeypatch.undo()
    assert command.main(world.words(out, *FEW)) == 0
    assert (out / "correctness.jsonl").read_bytes() == contents


def test_trajectories_that_were_removed_are_played_again(tmp_path, tokenizer):
    with scored_world(tmp_path, tokenizer, count=2) as world:
        args = world.words(tmp_path / "out", *FEW, "--utility", "relevance")
        assert command.main(args) == 0
        rows = (tmp_path / "out" / "train.jsonl").read_bytes()
        shutil.rmtree(tmp_path / "out" / "trajectories")
        assert command.main(args) == 0
        assert (tmp_path / "out" / "train.jsonl").read_bytes() == rows


def test_what_has_failed_as_often_as_it_may_is_not_promised_again(tmp_path, tokenizer, capsys, monkeypatch):
    with scored_world(tmp_path, tokenizer, count=2) as world:
        args = world.words(tmp_path / "out", *FEW, "--utility", "correctness", tries=2)
        assert command.main([*args, "--estimate"]) == 0
        first = lines(tmp_path / "out" / "candidates.jsonl")[0]
        name = first["trajectory"][0]["candidate_passage_ids"][7]
        text = texts_of(tmp_path / "out" / "passages.jsonl")[name]
        world.policy.breaks = lambda prompt: first["question"] in prompt and text in prompt
        capsys.readouterr()
        assert command.main(args) == 0
        assert "again\n" in capsys.readouterr().out
        assert command.main(args) == 0
        output = capsys.readouterr().out
        assert "again\n" not in output and "not tried again: 1, since a continuation" in output

        forbid_the_model(monkeypatch)
        assert command.main(args) == 0
        more = world.words(tmp_path / "out", *FEW, "--utility", "correctness", tries=3)
        with pytest.raises(AssertionError, match="the model was started"):
            command.main(more)
        monkeypatch.undo()
        world.policy.breaks = None
        capsys.readouterr()
        assert command.main(more) == 0
        assert "not tried again" not in capsys.readouterr().out


def test_trajectories_that_have_failed_as_often_as_they_may_are_not_played_again(
    tmp_path, tokenizer, monkeypatch
):
    with scored_world(tmp_path, tokenizer, count=2) as world:
        world.policy.breaks = lambda prompt: world.questions[0].text in prompt
        once = ("--utility", "relevance", "--tries", "1")
        assert command.main(world.words(tmp_path / "out", *FEW, *once)) == 0

        forbid_the_model(monkeypatch)
        assert command.main(world.words(tmp_path / "out", *FEW, *once)) == 0
        with pytest.raises(AssertionError, match="the model was started"):
            command.main(world.words(tmp_path / "out", *FEW, "--utility", "relevance", "--tries", "2"))
