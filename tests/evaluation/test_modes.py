"""`rag-r1 eval modes` with models behind HTTP: three runs, one table, the same budget, resumed without asking
again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rag_r1.data.rows import write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, make_questions, make_world, to_row
from rag_r1.evaluation import command
from rag_r1.evaluation.modes import alone_condition
from rag_r1.runs.errors import RunError
from tests.evaluation.command_words import PROMPT, command_words
from tests.evaluation.scripted_runs import row_of, setup_of
from tests.fakes.reading_policy import ReadingPolicy

SQ = demo_protocol("rag_r1_sq")
WORLD = make_world(3, "train", people=60, places=20)
QUESTIONS = make_questions(WORLD, 12, 3)
TURNS, TURN_TOKENS = 4, 40
FIGURES = ("answered", "formatted", "EM", "EM_answered", "EM_formatted")


def words(before: str, after: str, out: Path, *more: str) -> list[str]:
    flags = {
        "data": out.parent / "questions.parquet",
        "base_url": before,
        "trained_url": after,
        "model": "base",
        "trained": "tuned",
        "tokenizer": policy_path("rag_r1_sq"),
        "retriever_url": before,
        "protocol": "rag_r1_sq",
        "prompt": PROMPT,
        "out": out,
    }
    limits = [f"rag_r1.agent.max_turns={TURNS}", f"rag_r1.agent.max_turn_tokens={TURN_TOKENS}"]
    return ["modes", *command_words(*more, *limits, **flags)]


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, pytest.param(True, marks=pytest.mark.full)])
def test_three_runs_with_one_budget_become_one_table(
    sq_tokenizer, tmp_path, capsys, monkeypatch, interrupted
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # pictures take longer than everything else
    # Before training the model never finds anything, since its search has half of the passages; afterwards it
    # knows the answers. Without search it has to guess.
    write_rows(tmp_path / "questions.parquet", [to_row(q, i, "test", SQ) for i, q in enumerate(QUESTIONS)])
    out = tmp_path / "out"
    with (
        ReadingPolicy.of(sq_tokenizer, QUESTIONS, WORLD.passages[:1]) as base,
        ReadingPolicy.of(sq_tokenizer, QUESTIONS, WORLD.passages, knows=True) as tuned,
    ):
        if interrupted:  # the server of the trained model is not there yet
            assert command.main(words(base.url, "http://127.0.0.1:9/v1", out, "--retries", "0")) == 1
            requests = len(base.bodies)
            assert requests and not (out / "modes.json").exists() and "2/3 before" in capsys.readouterr().out
        assert command.main(words(base.url, tuned.url, out)) == 0
        assert not interrupted or len(base.bodies) == requests, "what is finished is not played again"
        modes = json.loads((out / "modes.json").read_text())["modes"]
        assert list(modes) == ["before_no_search", "before", "after"]
        right = {
            name: [mode["figures"][figure]["value"] for figure in FIGURES] for name, mode in modes.items()
        }
        assert right["after"] == [1.0, 1.0, 1.0, 1.0, 1.0]
        assert right["before"] == [1.0, 1.0, 0.0, 0.0, 0.0]
        assert {mode["questions"] for mode in modes.values()} == {len(QUESTIONS)}

        budgets = {name: json.loads((out / name / "provenance.json").read_text())["budget"] for name in modes}
        assert budgets["before"] == budgets["after"]
        alone = budgets["before_no_search"]
        assert (alone["max_turns"], alone["max_turn_tokens"]) == (0, (TURNS + 1) * TURN_TOKENS)
        prompts = [sq_tokenizer.decode(body["prompt"]) for body in base.bodies]
        assert any("reason step by step" in prompt for prompt in prompts), "without search: its own prompt"
        assert {body["model"] for body in base.bodies} == {"base"}
        assert {body["model"] for body in tuned.bodies} == {"tuned"}

        printed = capsys.readouterr().out
        assert "| EM of the answered |" in printed and "3/3 after training, with search" in printed
        assert "after training, with search" in (out / "modes.md").read_text()
        compared = json.loads((out / "compare.json").read_text())
        assert compared["runs"] == ["before", "before_no_search", "after"]
        assert compared["figures"]["em"]["all"]["differences"][1]["value"] == 1.0


def test_all_flags_that_do_not_go_together_are_refused_at_once(capsys):
    flags = ["--baseline", "cot", "--trained-url", "http://127.0.0.1:1/v1", "--alone", "no_search"]
    flags += ["--prompt-alone", "p.txt", "--judge-model", "j", "--judge-max-cost", "1", "--judge-body", "{"]
    with pytest.raises(SystemExit):
        command.main(["modes", "--data", "q", "--model", "m", "--trained", "t", "--out", "o", *flags])
    message = capsys.readouterr().err
    assert "--baseline: for `rag-r1 eval` alone: leave out" in message
    assert "--trained-url needs --base-url" in message and "use --alone cot or direct" in message
    assert all(text in message for text in ("together, or neither", "-max-cost needs", "-body is not JSON"))


def test_the_models_own_prompt_needs_a_place_for_the_question(tmp_path):
    prompt = tmp_path / "prompt.txt"
    for text, message in ((None, "cannot be read"), ("Answer.", "has no {question}")):
        if text is not None:
            prompt.write_text(text)
        with pytest.raises(RunError, match=message):
            alone_condition(setup_of(), "cot", prompt)
    prompt.write_text("只用一个字母回答：{question}")
    alone = alone_condition(setup_of(), "direct", prompt).setup(row_of("a"))
    assert alone.protocol.user_prompt == "只用一个字母回答：{question}" and alone.own_prompt


def test_check_only_names_both_models_servers_by_their_flags(tmp_path, capsys):
    write_rows(tmp_path / "questions.parquet", [to_row(QUESTIONS[0], 0, "test", SQ)])
    dead = ("http://127.0.0.1:9/v1", "http://127.0.0.1:1/v1")
    assert command.main(words(*dead, tmp_path / "out", "--check-only")) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if "no model server" in line]
    assert [line.split(" or correct ")[1] for line in lines] == ["--base-url", "--trained-url"]
