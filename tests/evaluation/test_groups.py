"""`rag-r1 eval groups`: how many groups of answers have something to learn from."""

from __future__ import annotations

import json
import re

import pytest

from rag_r1.data.rows import write_rows
from rag_r1.demo.policy import policy_path
from rag_r1.demo.world import demo_protocol, make_questions, make_world, to_row
from rag_r1.evaluation import command
from rag_r1.evaluation.groups import GroupsArguments, group_figures
from rag_r1.evaluation.report.run_table import read_run
from tests.evaluation.command_words import PROMPT, command_words
from tests.evaluation.finished_runs import record, write_run
from tests.fakes.reading_policy import ReadingPolicy

SQ = demo_protocol("rag_r1_sq")


def test_a_group_is_mixed_if_some_and_not_all_of_its_answers_are_right(tmp_path):
    groups = {"mixed": ["Paris", "Rome", None], "wrong": ["Rome", "Rome", None], "right": ["Paris"] * 3}
    groups["one failed"] = ["Paris", "Paris"]
    records = [
        record(question, answer, sample=sample)
        for question, answers in groups.items()
        for sample, answer in enumerate(answers)
    ]
    records.append(record("one failed", None, sample=2, failure="engine"))
    figures = group_figures(read_run(write_run(tmp_path / "run", records)))
    shares = {"mixed groups": 0.5, "all wrong": 0.25, "all right": 0.25, "best of a group": 0.75}
    assert {name: figures[name] for name in shares} == shares
    assert figures["EM"] == pytest.approx(6 / 12) and figures["searches"] == 1


def test_temperatures_that_are_close_have_folders_of_their_own(tmp_path):
    near = GroupsArguments(model="m", questions=["q"], out=tmp_path, temperatures=[1.0000001, 0.6, 1.0])
    assert [run.out.name for run in near.runs().values()] == ["t0.6", "t1", "t1.0000001"]


@pytest.mark.slow
def test_each_temperature_is_a_run_and_a_finished_one_is_not_played_again(sq_tokenizer, tmp_path, capsys):
    world = make_world(3, "train", people=60, places=20)
    questions = make_questions(world, 4, 3)
    write_rows(tmp_path / "questions.parquet", [to_row(q, i, "test", SQ) for i, q in enumerate(questions)])
    with ReadingPolicy.of(sq_tokenizer, questions, world.passages, knows=True) as policy:
        flags = {
            "questions": tmp_path / "questions.parquet",
            "base_url": policy.url,
            "model": "policy",
            "tokenizer": policy_path("rag_r1_sq"),
            "retriever_url": policy.url,
            "protocol": "rag_r1_sq",
            "prompt": PROMPT,
            "out": tmp_path / "out",
            "samples": 2,
        }
        words = ["groups", *command_words("--temperatures", 0.5, "--temperatures", 1, **flags)]
        assert command.main([*words, "--check-only"]) == 0 and policy.bodies == []
        assert command.main(words) == 0
        asked = len(policy.bodies)
        assert {body["temperature"] for body in policy.bodies} == {0.5, 1.0}
        assert command.main(words) == 0 and len(policy.bodies) == asked
    found = json.loads((tmp_path / "out" / "groups.json").read_text())["temperatures"]
    assert {name: (one["EM"], one["mixed groups"]) for name, one in found.items()} == {
        "0.5": (1.0, 0.0),
        "1": (1.0, 0.0),
    }
    assert "| 0.5 |" in (tmp_path / "out" / "groups.md").read_text()
    assert "most mixed groups at temperature" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--samples", "1", "--temperature", "1", "--card"], "--samples: .*--temperature: give.*--card: for"),
        (["--temperatures", "0"], "--temperatures"),
    ],
)
def test_flags_that_leave_no_group_are_refused(flags, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(["groups", "--model", "m", "--questions", "q", "--out", str(tmp_path / "o"), *flags])
    assert end.value.code == 2 and re.search(message, capsys.readouterr().err, re.DOTALL)
